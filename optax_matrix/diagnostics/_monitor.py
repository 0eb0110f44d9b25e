"""Statistics of updates while a model trains, kept in the optimizer's state."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix._mesh import without_axes
from optax_matrix._paths import named_leaves
from optax_matrix._surroundings import here, within
from optax_matrix._surroundings.observation import Measure, ObservedState
from optax_matrix.diagnostics._measures import (
    BLOCKS,
    OF_STACKS,
    OF_UPDATES,
    check_wanted,
    itself,
)
from optax_matrix.matrices.decisions import decide
from optax_matrix.tree.holders import check_tuples
from optax_matrix.tree.state import states_in


class MonitorState(NamedTuple):
    """State of `monitor`.

    Attributes:
        paths: One entry for each path: its crc32, uint32 ``()``.
        values: For each measure and path its value, float32, one per matrix.
        previous: The last updates, if a measure needs them; otherwise None.
        inner_state: State of the optimizer, which holds the measures of its blocks.
    """

    paths: dict[str, jax.Array]
    values: dict[str, dict[str, jax.Array]]
    previous: Any
    inner_state: optax.OptState


def monitor(
    inner: optax.GradientTransformation,
    measures: Sequence[str] = ("update_rms", "update_to_weight"),
    *,
    captures: Mapping[str, Sequence[int]] | None = None,
    dimension_numbers: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Measures the updates of an optimizer at every step; they pass unchanged.

    `read_monitor` returns the values by path. With :math:`u` the update of a matrix,
    :math:`w` its weights, :math:`g` its gradient and :math:`d` its direction (what the
    method's chain returns, before weight decay and learning rate), measures are

    * ``"update_rms"``: root mean square of :math:`u`
    * ``"update_to_weight"``: :math:`\|u\|_F / \|w\|_F`
    * ``"gradient_cosine"``: :math:`\langle -u, g \rangle / (\|u\| \|g\|)`
    * ``"update_cosine"``: cosine of this update and the last one, which the state keeps
    * ``"orthogonality_error"``: `diagnostics.orthogonality_error` of :math:`d`, divided
      by the root mean square norm of its rows or columns, whichever are fewer
    * ``"outside_momentum"``: share of :math:`\|d\|_F^2` outside of the range of the
      momentum, its columns and rows
    * ``"limited"``: 1 if `limit_norm_growth` shrank the update, otherwise 0
    * ``"bounded"``: share of the entries that `scale_by_second_moment` bounded

    The first four are defined for all leaves and cost a pass over each array that they
    mention; the others are defined for matrices. ``"orthogonality_error"`` costs one
    product, ``"outside_momentum"`` a singular value decomposition. Without `monitor`,
    the compiled program is the same as if blocks reported nothing.

    Args:
        inner: An optimizer, or any transformation with `on_matrices` inside.
        measures: Names of measures.
        captures: Steps, counted from 0, whose stacks are kept in the state, by name:
            ``{"polar_input": (0, 1000)}`` keeps what `orthogonalize` got at these steps
            (the momentum before the polar factor), ``"momentum"`` what `momentum`
            returned, if it is not inside of a rotation or projection, ``"direction"``
            what the chain returned. Each step costs the memory of a momentum.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`, for the first
            four measures; pass what ``inner`` got.

    Returns:
        A transformation with the updates of ``inner``, and `MonitorState`.

    Raises:
        ValueError: If a measure or a step is unknown; at `init`, if no block of
            ``inner`` reports what a measure needs; at `update`, if a measure needs
            ``params`` and they are missing.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.diagnostics.monitor(om.muon(0.1), ("update_rms", "gradient_cosine"))
        >>> params = {"up": {"kernel": jnp.eye(4), "bias": jnp.ones(4)}}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> values = om.diagnostics.read_monitor(state)
        >>> round(values["up/kernel"]["gradient_cosine"], 3)
        1.0
        >>> sorted(values)
        ['up/bias', 'up/kernel']
    """
    captures = {} if captures is None else captures
    check_wanted(measures, captures)
    inner = optax.with_extra_args_support(inner)
    outer = {name: OF_UPDATES[name] for name in measures if name in OF_UPDATES}
    wanted = {name: OF_STACKS[name] for name in measures if name in OF_STACKS}
    wanted |= {n: Measure(itself, (n,), tuple(s)) for n, s in captures.items()}
    keeps_previous = "update_cosine" in measures

    def init_fn(params):
        with within(measures=_with_outer(wanted)):
            state = inner.init(params)
        if type(params).__name__ == "_ParamsPlaceholder":  # Of optax.tree.map_params.
            previous = params if keeps_previous else None
            return MonitorState(_OPAQUE, _OPAQUE, previous, state)
        _check_reports(wanted, state)
        decisions = decide(params, dimension_numbers)

        def start(path, leaf):
            view = decisions[path].view
            zeros = lambda _: jnp.zeros(_batch(view, leaf), jnp.float32)
            return without_axes(zeros, _axes(view, leaf), leaf)(leaf)

        leaves = named_leaves(params)
        paths = {path: jnp.asarray(_crc(path)) for path in leaves}
        values = {n: {p: start(p, x) for p, x in leaves.items()} for n in outer}
        previous = optax.tree.zeros_like(params) if keeps_previous else None
        return MonitorState(paths, values, previous, state)

    def update_fn(updates, state, params=None, **extra_args):
        if "update_to_weight" in outer and params is None:
            raise ValueError(
                "`params` must be passed to `update` for the measure "
                "'update_to_weight'; call tx.update(updates, state, params)."
            )
        with within(measures=_with_outer(wanted)):
            new, inner_state = inner.update(
                updates, state.inner_state, params, **extra_args
            )
        trees = {"u": new, "g": updates, "w": params, "last": state.previous}
        leaves = {name: named_leaves(tree) for name, tree in trees.items()}
        decisions = decide(new if params is None else params, dimension_numbers)

        def value(measure, path):
            axes = _axes(decisions[path].view, leaves["u"][path])
            have = {n: x[path] for n, x in leaves.items() if path in x}
            of = lambda have: measure(axes, **have).astype(jnp.float32)
            return without_axes(of, axes, have["u"])(have)

        values = {
            name: {path: value(measure, path) for path in leaves["u"]}
            for name, measure in outer.items()
        }
        previous = None
        if keeps_previous:  # In the dtype of `init`, or a scan would refuse the state.
            previous = optax.tree.cast_like(new, state.previous)
        return new, MonitorState(state.paths, values, previous, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


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


_OPAQUE: Any = object()  # `optax.tree.map_params` finds no parameters below it.


def _with_outer(wanted: Mapping[str, Measure]) -> dict[str, Measure]:
    """What is wanted here, and by the monitors around this one."""
    asked = here().measures
    for name, measure in wanted.items():
        if asked.get(name, measure) != measure:
            raise ValueError(
                f"`captures` must name the same steps in a monitor inside of another, "
                f"got {asked[name].steps} and {measure.steps} for {name!r}; name all "
                "of them in one."
            )
    return {**asked, **wanted}


def _read(tree: Any, found: dict[str, dict[str, Any]]) -> bool:
    """Adds the values of every monitor, inner ones first; whether there is one."""
    monitors = list(_nodes(tree, MonitorState))
    for node in monitors:
        _read(node.inner_state, found)
        for name, values in node.values.items():
            for path, value in values.items():
                found.setdefault(path, {})[name] = _number(_array(value))
        paths = {int(_crc(path)): path for path in node.paths}
        for _, state in states_in(node.inner_state):
            _read_stacks(state, paths, found)
    return bool(monitors)


def _read_stacks(state: Any, paths: Mapping[int, str], found: Any) -> None:
    """Adds the values of stacks, in the order of the matrices in their leaves."""
    for name, stacks in _values(state).items():
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


def _values(state: Any) -> dict[str, Any]:
    """The measures of a chain's stacks, also if its state is in eight bits."""
    observed = _nodes(state.inner_state, ObservedState)
    return {name: stacks for node in observed for name, stacks in node.values.items()}


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


def _crc(path: str) -> np.uint32:
    return np.uint32(zlib.crc32(path.encode()))


def _batch(view: Any, leaf: Any) -> tuple[int, ...]:
    """The axes of a leaf that count matrices."""
    return () if view is None else tuple(leaf.shape[a] for a in view.batch_axes)


def _axes(view: Any, leaf: Any) -> tuple[int, ...]:
    """The axes of a leaf over which a matrix extends."""
    return (
        tuple(range(leaf.ndim))
        if view is None
        else view.output_axes + view.reduction_axes
    )


def _check_reports(wanted: Mapping[str, Measure], state: Any) -> None:
    """Raises if no block reports what a measure needs."""
    states: list[Any] = [s for _, s in states_in(state) if s.manifest and wanted]
    measured = {name for s in states for name in _values(s)}
    for name, measure in wanted.items():
        if states and name not in measured:
            blocks = " and ".join(BLOCKS[need] for need in measure.needs)
            raise ValueError(
                f"`measures` and `captures` must be of blocks that the optimizer has, "
                f"got {name!r}, which needs {blocks}; leave it out."
            )
