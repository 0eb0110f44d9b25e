"""The size of an optimizer's state, computed from shapes alone."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._paths import key_name, leaves_with_keys, named_leaves, path_name
from optax_matrix._printed import Printed
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.stacks.slots import slot_named
from optax_matrix.tree.state import OnMatricesState, is_state

SHARED = "(shared)"
_WRAPPERS = (
    *("inner_state", "inner_states", "inner_opt_state", "base_state"),
    *("after", "other"),
)


@dataclasses.dataclass(frozen=True)
class StateField:
    """One array of a state, see `StateBytes`."""

    group: str
    field: str
    shape: tuple[int, ...]
    dtype: np.dtype
    scalar: bool

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return self.elements * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class StateBytes(Printed):
    """The arrays of a state; prints as a table.

    Attributes:
        fields: The arrays, in the order of the state. Each has a ``group``, the stack
            of matrices or the parameter that it belongs to (``"(shared)"`` for counters
            and hyperparameters); a ``field``, its name within the state, such as
            ``"mu"`` or ``"rotation/rows"``; ``shape`` (the first axis of a stack counts
            the matrices), ``dtype``, ``elements`` and ``bytes``; and ``scalar``,
            whether the number of its elements (per matrix) is independent of the size
            of the matrices, O(1) in the papers' formulas.
        parameters: Number of elements of the parameters.
    """

    fields: tuple[StateField, ...]
    parameters: int

    @property
    def elements(self) -> int:
        """Number of elements without scalars, as the papers' formulas count them."""
        return sum(f.elements for f in self.fields if not f.scalar)

    @property
    def scalars(self) -> int:
        """Number of elements of scalar fields."""
        return sum(f.elements for f in self.fields if f.scalar)

    @property
    def bytes(self) -> int:
        """Number of bytes of all fields."""
        return sum(f.bytes for f in self.fields)

    def of_group(self, group: str) -> "StateBytes":
        """The fields of one stack or parameter."""
        fields = tuple(f for f in self.fields if f.group == group)
        return dataclasses.replace(self, fields=fields)

    def by_group(self) -> dict[str, int]:
        """Bytes of each stack, of each other parameter, and of shared fields."""
        return _sums((f.group, f.bytes) for f in self.fields)

    def by_field(self) -> dict[str, int]:
        """Bytes of each field over all groups."""
        return _sums((f.field, f.bytes) for f in self.fields)

    def __str__(self) -> str:
        header = ("group", "field", "shape", "dtype", "elements", "bytes")
        table = [header, *map(_line, self.fields)]
        total = sum(f.elements for f in self.fields)
        table.append(("total", "", "", "", f"{total:,}", f"{self.bytes:,}"))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        adjust = [str.ljust] * 4 + [str.rjust] * 2
        return "\n".join(
            "  ".join(f(x, n) for f, x, n in zip(adjust, line, widths, strict=True))
            for line in table
        )


@checked
def state_bytes(tx: AnyOptimizer, params: Any) -> StateBytes:
    """Computes the size of an optimizer's state without allocating it.

    Args:
        tx: Any optimizer, with or without `on_matrices` inside.
        params: Parameters, or their shapes as `jax.ShapeDtypeStruct`.

    Returns:
        The arrays of ``tx.init(params)`` and their sums: over all (``bytes``,
        ``elements``), `StateBytes.by_group` and `StateBytes.by_field`.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> shape = lambda *n: jax.ShapeDtypeStruct(n, jnp.float32)
        >>> params = {"up": {"kernel": shape(64, 128), "bias": shape(128)}}
        >>> print(om.diagnostics.state_bytes(om.muon(1e-3), params))
        group            field           shape         dtype    elements   bytes
        (shared)         method/muon     ()            uint32          1       4
        128x64@239267d6  manifest        (1, 4)        uint32          4      16
        128x64@239267d6  mu              (1, 128, 64)  float32     8,192  32,768
        128x64@239267d6  zero_gradients  (1,)          int32           1       4
        (shared)         count           ()            int32           1       4
        up/bias          mu              (128,)        float32       128     512
        up/bias          nu              (128,)        float32       128     512
        total                                                      8,455  33,820
    """
    leaves = named_leaves(params)
    state = jax.eval_shape(tx.init, params)
    fields = tuple(_fields(state, leaves))
    return StateBytes(fields, sum(math.prod(x.shape) for x in leaves.values()))


def _fields(state: Any, leaves: Mapping[str, Any], above: tuple = ()):
    for keys, node in leaves_with_keys(state, is_state):
        keys = above + keys
        if not is_state(node):
            yield _of_leaf(keys, node, leaves)
            continue
        yield from _of_stacks(keys, node._replace(after=None, other=None))
        for name in ("after", "other"):
            inside = (*keys, jax.tree_util.GetAttrKey(name))
            yield from _fields(getattr(node, name), leaves, inside)


def _of_stacks(keys: tuple, state: OnMatricesState) -> Iterator[StateField]:
    for below, leaf in leaves_with_keys(unboxed(state)[0]):
        groups = [k for k in map(key_name, below) if k in state.manifest]
        names = tuple(k for k in below if key_name(k) not in groups)
        names = tuple(k for k in names if slot_named(k) is None)
        scalar = math.prod(leaf.shape[1:]) == 1 or key_name(below[0]) == "manifest"
        yield _field(groups[0] if groups else SHARED, keys + names, leaf, scalar)


def _of_leaf(keys: tuple, leaf: Any, params: Mapping[str, Any]) -> StateField:
    """A leaf outside of stacks; its keys may end with the path of a parameter."""
    for start in range(len(keys)):
        path = path_name(keys[start:])
        # A count may have the name of a parameter.
        if path in params and (leaf.shape or not params[path].shape):
            return _field(path, keys[:start], leaf, scalar=False)
    return _field(SHARED, keys, leaf, scalar=not leaf.shape)


def _field(group: str, keys: tuple, leaf: Any, scalar: bool) -> StateField:
    names = list(map(key_name, keys))
    # Names of wrappers, indices in chains and labels of partitions are left out.
    labels = {i + 1 for i, name in enumerate(names) if name == "inner_states"}
    shown = [n for i, n in enumerate(names) if i not in labels and n not in _WRAPPERS]
    name = "/".join(n for n in shown if not n.isdigit())
    return StateField(group, name, tuple(leaf.shape), np.dtype(leaf.dtype), scalar)


def _line(field: StateField) -> tuple[str, ...]:
    numbers = (f"{field.elements:,}", f"{field.bytes:,}")
    return (field.group, field.field, str(field.shape), field.dtype.name, *numbers)


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, number in pairs:
        sums[name] = sums.get(name, 0) + number
    return sums
