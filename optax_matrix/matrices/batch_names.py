"""Names of axes that count matrices, and so are never inside one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

STAGES = ("stage", "stages", "activation_stage")
EXPERTS = (
    *("exp", "expert", "experts", "num_exp", "num_experts"),
    *("exp_with_fsdp", "expert_only", "o_groups"),
)
LAYERS = (
    *("layers", "layer", "stack", "layers_outside_pipeline"),
    *("scanned_blocks", "dense_layers", "moe_layers", "local_layers"),
    *("layers_per_stage", "repeat", "repeats", "circular_repeats"),
)
"""Logical names of axes of stacked layers, those of T5X, Levanter and MaxText."""
REPLICAS = ("diloco",)

BATCH = (*STAGES, *EXPERTS, *LAYERS, *REPLICAS)
"""All of them; those that devices split most often come first."""

BESIDE_ANY = ("layers", "layer", "expert", "experts", "stack")
"""Those that count matrices for `infer` beside names that may be axes of a mesh."""

_ALWAYS = {*STAGES, *LAYERS, *REPLICAS}
_DIMENSION = re.compile(
    r"(embed|mlp|vocab|heads?|kv|qkv)(_\w+)?|[qo]_\w+"
    r"|d_model|d_ff|hidden|vocabulary|joined_kv|norm"
)


def is_dimension(name: Any) -> bool:
    """Whether this is the logical name of a dimension, which no mesh axis has."""
    known = isinstance(name, str) and name not in BATCH
    return known and _DIMENSION.fullmatch(name) is not None


def batch_axes(names: Sequence[Any], mesh: Any = None) -> list[int]:
    """The axes of a leaf that count matrices, by their names.

    An axis of experts belongs to the matrix if only one other is left: the outputs of a
    router. The name of a mesh axis may stand for the sharding of a leaf, not for the
    meaning of an axis.
    """
    unclear = () if mesh is None else mesh.axis_names
    names = [None if name in unclear else name for name in names]
    rest = [a for a, name in enumerate(names) if name not in BATCH]
    counting = BATCH if len(rest) > 1 else _ALWAYS
    return [a for a, name in enumerate(names) if name in counting]


def refuse_inside(
    boxed: Mapping[str, Sequence[Any]], views: Mapping[str, Any], mesh: Any
) -> None:
    """Raises if a view has an axis that counts matrices in its matrix.

    ``boxed`` are the logical names of the axes of leaves, by path.
    """
    for path, names in boxed.items():
        if path not in views or len(names) != len(views[path].shape):
            continue
        view, counting = views[path], batch_axes(names, mesh)
        sides = view.reduction_axes + view.output_axes
        if inside := [a for a in counting if a in sides]:
            rest = tuple(a for a in range(len(names)) if a not in counting)
            raise ValueError(
                f"`dimension_numbers` of parameter {path!r}, whose axes are {names}, "
                f"must leave out those that count matrices, got axis {inside[0]} "
                f"({names[inside[0]]!r}) in its matrix; take its sides from axes "
                f"{rest}, or give that axis another name."
            )


def likeliest(names: Sequence[str]) -> str:
    """Of several names of axes the one that most often splits a stack."""
    order = {name: i for i, name in enumerate(BATCH)}
    unknown = order["scanned_blocks"] - 0.5  # What comes from there on stays whole.
    return min(names, key=lambda name: order.get(name, unknown))
