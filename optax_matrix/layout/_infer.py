"""Dimension numbers from a model's logical axis names."""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from optax_matrix.layout._default_rule import (
    Decision,
    default_full_rule,
    default_rule,
    is_excluded,
)
from optax_matrix.layout._dimension_numbers import MatrixDimensionNumbers
from optax_matrix.layout._rules import PathRule
from optax_matrix.layout.paths import named_leaves

RESIDUAL = ("embed", "d_model", "hidden")


def infer(
    model: Any,
    *,
    residual: Sequence[str] = RESIDUAL,
    batch: Sequence[str] = ("layers", "layer", "expert", "experts", "stack"),
    vocab: Sequence[str] = ("vocab", "vocabulary"),
    layers: Sequence[str] = ("layers", "layer", "stack"),
) -> PathRule:
    """Makes a rule from the logical axis names of a model.

    A kernel whose first axis (apart from batch axes) is on the residual stream reads
    it: that axis is reduced, and all others are outputs. A kernel whose last axis is on
    the stream writes it. Axes named in `batch` are batch axes. A leaf with a `vocab`
    axis is an embedding or head: it gets the other optimizer, except in the full-model
    mode of `aro`, where it is a matrix like any other. Leaves without names, and those
    that the default rule excludes by their path (biases, norms, embeddings, learned
    positions, routers, depthwise convolutions), follow the default rule. For others use
    ``by_path(include=..., otherwise=infer(model))``.

    The names are read here, once. Flax NNX passes them to `init` but not to `update`,
    so a rule that read them from its argument would decide differently in the two.

    Args:
        model: An NNX module or state, Linen variables with (logical) partitioning, or
            any tree whose leaves carry axis names.
        residual: Names of the axis of the residual stream.
        batch: Names of batch axes.
        vocab: Names of the vocabulary axis.
        layers: Which of the names in `batch` are axes of layers.

    Returns:
        A rule for the ``dimension_numbers`` argument of every recipe.

    Examples:
        >>> import flax.nnx as nnx
        >>> init = nnx.with_partitioning(
        ...     nnx.initializers.lecun_normal(), ("embed", "mlp"), eager_sharding=False
        ... )
        >>> model = nnx.Linear(4, 8, kernel_init=init, rngs=nnx.Rngs(0))
        >>> rule = infer(model)
        >>> rule.decide("kernel", model.kernel)[0].residual
        'in'
    """
    roles = {
        **dict.fromkeys(residual, "residual"),
        **dict.fromkeys(batch, "batch"),
        **dict.fromkeys(vocab, "vocab"),
    }
    boxes = named_leaves(model, is_leaf=lambda x: _axis_names(x) is not None)
    names = {p: n for p, box in boxes.items() if (n := _axis_names(box)) is not None}

    def rule(roles: dict[str, str], otherwise: Any, full: bool) -> Any:
        def decide(path: str, leaf: Any) -> Decision:
            if is_excluded(path, leaf, full) or len(names.get(path, ())) != len(
                leaf.shape
            ):
                return otherwise(path, leaf)
            by_names = _decide_by_names(names[path], roles, layers)
            return by_names or otherwise(path, leaf)

        return decide

    every = {name: role for name, role in roles.items() if role != "vocab"}
    full = rule(every, default_full_rule, full=True)
    return PathRule(rule(roles, default_rule, full=False), full)


def _decide_by_names(
    names: tuple, roles: dict[str, str], layers: Sequence[str]
) -> Decision | None:
    kinds = [roles.get(name) for name in names]
    if not any(kinds):
        return None  # Mesh axes, or names that no argument lists.
    if "vocab" in kinds:
        return None, f"embedding or head: axes {names}"
    matrix = [a for a, kind in enumerate(kinds) if kind != "batch"]
    if len(matrix) < 2:
        return None, f"not a matrix: axes {names}"
    reads, writes = (kinds[matrix[i]] == "residual" for i in (0, -1))
    reason = f"axes {names}"
    scanned = tuple(
        a for a, name in enumerate(names) if a not in matrix and name in layers
    )
    numbers = functools.partial(MatrixDimensionNumbers, layer_axis=scanned)
    if reads and not writes:
        output = tuple(matrix[1:])
        return numbers(matrix[0], output, residual="in"), reason
    if writes and not reads:
        reduction = tuple(matrix[:-1])
        return numbers(reduction, matrix[-1], residual="out"), reason
    if len(matrix) == 2:
        return numbers(matrix[0], matrix[1]), reason
    return None


def _axis_names(box: Any) -> tuple[str | None, ...] | None:
    """Logical axis names of an NNX variable or Linen box, None for anything else."""
    if hasattr(box, "unbox"):
        return _names(getattr(box, "names", None))
    if not hasattr(box, "get_metadata"):
        return None
    fields: Any = box.get_metadata()
    found = map(_names, map(fields.get, ("sharding_names", "out_sharding", "sharding")))
    return next((names for names in found if names is not None), None)


def _names(names: Any) -> tuple[str | None, ...] | None:
    if not isinstance(names, (tuple, list, jax.sharding.PartitionSpec)):
        return None
    known = all(n is None or isinstance(n, (str, tuple)) for n in names)
    return tuple(names) if known else None
