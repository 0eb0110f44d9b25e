"""The state of `monitor`, and its values by path."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from optax_matrix._surroundings.observation import ObservedState
from optax_matrix.checkpoint.compacting import compact
from optax_matrix.tree.holders import check_tuples
from optax_matrix.tree.state import states_in


class MonitorState(NamedTuple):
    """State of `monitor`.

    Attributes:
        paths: One entry for each path: its crc32, uint32 ``()``.
        values: For each measure and path its value, float32, one per matrix.
        previous: The last updates, if a measure needs them; otherwise None.
        inner_state: State of the optimizer, which holds the measures of its blocks.
        count: Number of updates, int32 ``()``; None if each of them is measured.
    """

    paths: dict[str, jax.Array]
    values: dict[str, dict[str, jax.Array]]
    previous: Any
    inner_state: optax.OptState
    count: Any = None


def read_monitor(opt_state: Any) -> dict[str, dict[str, Any]]:
    """The values of every `monitor` in a state, by path and measure.

    Where several of them have the same measure of a path, the value of the last one
    counts, which is closest to the final update: the outer one of two inside of one
    another. Pass a part of the state for the others.

    Args:
        opt_state: A state with `MonitorState` anywhere inside: of ``optax.chain``,
            ``optax.MultiSteps``, ``nnx.Optimizer``. It must be on the host or fully
            addressable.

    Returns:
        ``{path: {measure: value}}``. A value is a float for a leaf that is one matrix
        or none, otherwise an array with one number per matrix. Values of ``captures``
        are arrays ``(matrices, steps, out, in)``, without the first axis for a leaf
        that is one matrix.

    Raises:
        ValueError: If there is no `MonitorState`.
    """
    found: dict[str, dict[str, Any]] = {}
    if not _read(opt_state, found):
        check_tuples(opt_state, "opt_state")
        raise ValueError(
            "`opt_state` must hold the state of diagnostics.monitor, got "
            f"{type(opt_state).__name__} without it; wrap the optimizer in monitor."
        )
    return found


def values_of(state: Any) -> dict[str, Any]:
    """The measures of a chain's stacks, also if its state is in eight bits."""
    observed = _nodes(state.inner_state, ObservedState)
    return {name: stacks for node in observed for name, stacks in node.values.items()}


def _read(tree: Any, found: dict[str, dict[str, Any]]) -> bool:
    """Adds the values of every monitor, inner ones first; whether there is one."""
    monitors = list(_nodes(tree, MonitorState))
    for node in monitors:
        _read(node.inner_state, found)
        for name, values in node.values.items():
            for path, value in values.items():
                found.setdefault(path, {})[name] = _number(_array(value))
        paths = {int(crc_of(path)): path for path in node.paths}
        for _, state in states_in(compact(node.inner_state)[0]):
            _read_stacks(state, paths, found)
    return bool(monitors)


def _read_stacks(state: Any, paths: Mapping[int, str], found: Any) -> None:
    """Adds the values of stacks, in the order of the matrices in their leaves."""
    for name, stacks in values_of(state).items():
        parts: dict[str, list[tuple[int, np.ndarray]]] = {}
        for group, values in stacks.items():
            rows, values = _array(state.manifest[group]), _array(values)
            for (crc, position, *_), value in zip(rows, values, strict=True):
                if (path := paths.get(int(crc))) is not None:  # Else padding.
                    parts.setdefault(path, []).append((int(position), value))
        for path, pairs in parts.items():
            ordered = [value for _, value in sorted(pairs, key=lambda pair: pair[0])]
            alike = len({value.shape for value in ordered}) == 1
            whole = np.stack(ordered) if alike else ordered
            found.setdefault(path, {})[name] = _number(whole)


def _number(value: Any) -> Any:
    """A value without the axis of matrices if there is only one; floats as such."""
    if isinstance(value, np.ndarray) and value.ndim and len(value) == 1:
        value = value[0]
    return float(value) if np.ndim(value) == 0 else value


def _array(x: Any) -> np.ndarray:
    (x,) = jax.tree.leaves(x)  # NNX wraps arrays.
    return np.asarray(x)


def _nodes(tree: Any, kind: type) -> Iterator[Any]:
    """The outermost nodes of a type."""
    is_one = lambda node: isinstance(node, kind)
    return filter(is_one, jax.tree.leaves(tree, is_leaf=is_one))


def crc_of(path: str) -> np.uint32:
    return np.uint32(zlib.crc32(path.encode()))
