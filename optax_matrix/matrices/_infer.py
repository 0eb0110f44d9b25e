"""Dimension numbers from a model's logical axis names."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._words import without_index
from optax_matrix.matrices.batch_names import BATCH, BESIDE_ANY, LAYERS, STAGES
from optax_matrix.matrices.boxes import (
    has_logical_names,
    has_mesh_axes,
    is_box,
    names_of,
)
from optax_matrix.matrices.names import (
    RESIDUAL,
    Accepted,
    Answer,
    default_full_rule,
    default_rule,
    is_excluded,
)
from optax_matrix.matrices.rules import PathRule
from optax_matrix.matrices.view import MatrixDimensionNumbers

_HEADS = ("heads", "q_heads", "kv_heads")  # The dimension is behind them.
_VOCAB = ("vocab", "vocabulary")
_LAYERS = (*STAGES, *LAYERS)


def infer(
    model: Any,
    *,
    residual: Sequence[str] = RESIDUAL,
    batch: Sequence[str] = BATCH,
    vocab: Sequence[str] = _VOCAB,
    layers: Sequence[str] = _LAYERS,
) -> PathRule:
    """Returns a rule by the logical axis names of a model.

    A kernel whose first axis (apart from batch axes) is on the residual stream reads
    it: that axis is reduced, and all others are outputs. A kernel whose last axis is on
    the stream writes it. Axes named in `batch` are batch axes. Heads and their
    dimension are one side of other kernels of three axes. A leaf with a `vocab`
    axis is an embedding or head: it gets the other optimizer, except in the full-model
    mode of `aro`, where it is a matrix like any other. Leaves without names, and those
    that the default rule excludes by their path (biases, norms, embeddings, learned
    positions, routers, depthwise convolutions), follow the default rule. For others use
    ``by_path(include=..., otherwise=infer(model))``.

    The names are read here, once. Flax NNX passes them to `init` but not to `update`,
    so a rule that read them from its argument would decide differently in the two.

    Args:
        model: An NNX module or state, Linen variables with (logical) partitioning, a
            Haliax model (its layers tell which axes are inputs), or any tree whose
            leaves carry axis names.
        residual: Names of the axis of the residual stream.
        batch: Names of batch axes. By default they are those of layers, stages,
            repeats and experts in T5X, Levanter and MaxText, which dimension numbers
            of any kind must leave out of a matrix. Where names may be axes of the mesh
            (an NNX variable or a Linen ``Partitioned`` that names no dimension, such as
            "embed", and has no logical rules), only "layers", "layer", "expert",
            "experts" and "stack" are.
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
        >>> rule.of_leaf("kernel", model.kernel)[0].residual
        'in'
    """
    told = axes_told(model, residual=residual, batch=batch, vocab=vocab, layers=layers)

    full = _OfLeaf(told, default_full_rule, is_full=True)
    return PathRule(_OfLeaf(told, default_rule, is_full=False), full)


@dataclasses.dataclass(frozen=True)
class AxesTold:
    """What axis names say of a path, a leaf, and whether embeddings are matrices.

    Attributes:
        names: The names of the axes, by path.
        logical: The paths of those names that are no axes of a mesh.
        roles: For each name ``residual``, ``batch`` or ``vocab``.
        layers: Names of axes of layers.
        may_be_mesh_axes: Names that may be of a mesh where they are not logical.
        sides: Inputs and outputs of layers that tell them, by path.
    """

    names: Mapping[str, tuple[Any, ...]]
    logical: Set[str]
    roles: Mapping[str, str]
    layers: Sequence[str]
    may_be_mesh_axes: Set[str]
    sides: Mapping[str, Any]

    def __call__(self, path: str, leaf: Any, full: bool) -> Answer | None:
        """The dimension numbers and the reason; None where names do not tell."""
        place, found = self._names_of(path, leaf)
        if not found or is_excluded(path, leaf, full):
            return None
        unsure = () if place in self.logical else self.may_be_mesh_axes
        roles = {
            name: role
            for name, role in self.roles.items()
            if name not in unsure and not (full and role == "vocab")
        }
        return _by_names(found, roles, self.layers, self.sides.get(place))

    def excludes(self, path: str, leaf: Any, full: bool) -> bool:
        """Whether the name of a leaf with logical axis names makes it no matrix."""
        place, found = self._names_of(path, leaf)
        return bool(found) and place in self.logical and is_excluded(path, leaf, full)

    def _names_of(self, path: str, leaf: Any) -> tuple[str, tuple[Any, ...]]:
        place = path if path in self.names else without_index(path)
        found = self.names.get(place, ())
        return place, found if len(found) == len(leaf.shape) else ()


@dataclasses.dataclass(frozen=True, eq=False)
class _OfLeaf:
    """The rule of one model; no closure, so that it pickles."""

    told: AxesTold
    otherwise: Callable[[str, Any], Answer]
    is_full: bool

    def __call__(self, path: str, leaf: Any) -> Answer:
        found = self.told(path, leaf, self.is_full)
        numbers, reason = found or self.otherwise(path, leaf)
        is_accepted = found is None and self.told.excludes(path, leaf, self.is_full)
        return numbers, Accepted(reason) if is_accepted else reason


def axes_told(
    model: Any,
    *,
    residual: Sequence[str] = RESIDUAL,
    batch: Sequence[str] = BATCH,
    vocab: Sequence[str] = _VOCAB,
    layers: Sequence[str] = _LAYERS,
) -> AxesTold:
    """What the axis names of a model say; arguments are those of `infer`."""
    roles = {
        **dict.fromkeys(residual, "residual"),
        **dict.fromkeys(batch, "batch"),
        **dict.fromkeys(vocab, "vocab"),
    }
    boxes = named_leaves(model, is_leaf=lambda x: _axis_names(x) is not None)
    names = {p: n for p, box in boxes.items() if (n := _axis_names(box)) is not None}
    own = {*residual, *vocab}
    logical = {p for p in names if has_logical_names(boxes[p], own)}
    may_be_mesh_axes = {*BATCH} - {*BESIDE_ANY} if batch is BATCH else set()
    sides = _sides_of_named_layers(model)
    return AxesTold(names, logical, roles, layers, may_be_mesh_axes, sides)


def _by_names(
    names: tuple,
    roles: dict[str, str],
    layers: Sequence[str],
    sides: tuple[tuple, tuple] | None,
) -> Answer | None:
    kinds = [roles.get(name) for name in names]
    if not any(kinds) and not any(name in _HEADS for name in names):
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
    if sides is not None and {*sides[0], *sides[1]} <= set(names):
        reduction, output = (tuple(map(names.index, side)) for side in sides)
        reads, writes = (
            "residual" in [kinds[a] for a in x] for x in (reduction, output)
        )
        side = None if reads == writes else "in" if reads else "out"
        return numbers(reduction, output, residual=side), reason
    if reads and not writes:
        output = tuple(matrix[1:])
        return numbers(matrix[0], output, residual="in"), reason
    if writes and not reads:
        reduction = tuple(matrix[:-1])
        return numbers(reduction, matrix[-1], residual="out"), reason
    heads = [a for a in matrix if names[a] in _HEADS]
    if len(matrix) == 2 and any(kinds):
        return numbers(matrix[0], matrix[1]), reason
    if len(matrix) == 3 and heads == matrix[1:2]:
        return numbers(matrix[0], tuple(matrix[1:])), reason
    if len(matrix) == 3 and heads == matrix[:1]:
        return numbers(tuple(matrix[:2]), matrix[2]), reason
    return None


def _sides_of_named_layers(model: Any) -> dict[str, tuple[tuple, tuple]]:
    """Names of the input and output axes of each weight of a Haliax ``Linear``."""
    is_linear = lambda x: all(hasattr(x, name) for name in ("In", "Out", "weight"))
    layers = named_leaves(model, is_leaf=is_linear)
    return {
        f"{path}/weight".lstrip("/"): (_axes_named(x.In), _axes_named(x.Out))
        for path, x in layers.items()
        if is_linear(x)
    }


def _axes_named(axes: Any) -> tuple[str, ...]:
    several = axes if isinstance(axes, (tuple, list)) else (axes,)
    return tuple(getattr(axis, "name", axis) for axis in several)


def _axis_names(box: Any) -> tuple[str | None, ...] | None:
    """Names of the axes of a box that may be logical, None if there are none."""
    names = names_of(box) if is_box(box) and not has_mesh_axes(box) else ()
    known = all(n is None or isinstance(n, (str, tuple)) for n in names)
    return names if names and known else None
