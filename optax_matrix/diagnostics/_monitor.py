"""Statistics of updates while a model trains, kept in the optimizer's state."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._mesh import without_axes
from optax_matrix._paths import named_leaves
from optax_matrix._surroundings import here, within
from optax_matrix._surroundings.observation import Measure, at_every
from optax_matrix.diagnostics._measures import BLOCKS, OF_STACKS, OF_UPDATES, itself
from optax_matrix.diagnostics._monitor_state import MonitorState, crc_of, values_of
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.view import MatrixView
from optax_matrix.tree.state import states_in

_OPAQUE: Any = object()  # `optax.tree.map_params` finds no parameters below it.


@checked
def monitor(
    inner: optax.GradientTransformation,
    measures: Sequence[str] = ("update_rms", "update_to_weight"),
    *,
    every: PositiveInt = 1,
    captures: Mapping[str, Sequence[int]] | None = None,
    dimension_numbers: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Measures the updates of an optimizer, and returns them unchanged.

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

    The first four are defined for all leaves. Each costs one pass over the arrays of
    its formula. The others are defined for matrices: ``"orthogonality_error"`` costs
    one product, ``"outside_momentum"`` a singular value decomposition. Without
    `monitor`, blocks report nothing, and the compiled program has no trace of it.

    Args:
        inner: An optimizer, or any transformation with `on_matrices` inside.
        measures: Names of measures.
        every: Number of steps from one measurement to the next. The first step is
            measured. In between the state keeps the last values at no cost.
        captures: Steps, counted from 0, whose stacks the state keeps, by name:
            ``{"polar_input": (0, 1000)}`` keeps the input of `orthogonalize` at these
            steps. ``"momentum"`` is the output of `momentum` outside of rotations and
            projections, ``"direction"`` the output of the chain. Each step costs the
            memory of a momentum.
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
    _check_wanted(measures, captures)
    inner = optax.with_extra_args_support(inner)
    outer = {name: OF_UPDATES[name] for name in measures if name in OF_UPDATES}
    often = lambda name: dataclasses.replace(OF_STACKS[name], every=every)
    wanted = {name: often(name) for name in measures if name in OF_STACKS}
    wanted |= {n: Measure(itself, (n,), tuple(s)) for n, s in captures.items()}
    keeps_previous = "update_cosine" in measures
    views_in = _views_by_form(dimension_numbers)

    def init_fn(params):
        with within(measures=_with_outer(wanted)):
            state = inner.init(params)
        if type(params).__name__ == "_ParamsPlaceholder":  # Of optax.tree.map_params.
            previous = params if keeps_previous else None
            count = None if every == 1 else _OPAQUE
            return MonitorState(_OPAQUE, _OPAQUE, previous, state, count)
        _check_reports(wanted, state)
        views, leaves = views_in(params), named_leaves(params)
        zero = lambda path: _zeros(views.get(path), leaves[path])
        paths = {path: jnp.asarray(crc_of(path)) for path in leaves}
        previous = optax.tree.zeros_like(params) if keeps_previous else None
        count = None if every == 1 else jnp.zeros((), jnp.int32)
        values = {name: {path: zero(path) for path in leaves} for name in outer}
        return MonitorState(paths, values, previous, state, count)

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
        views = views_in(new if params is None else params)
        measured = lambda: _measured(outer, views, leaves)
        values = at_every(every, state.count, measured, state.values)
        previous = None
        if keeps_previous:  # In the dtype of `init`, or a scan would refuse the state.
            previous = optax.tree.cast_like(new, state.previous)
        count = None if state.count is None else state.count + 1
        return new, MonitorState(state.paths, values, previous, inner_state, count)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _views_by_form(dimension_numbers: Any) -> Callable[[Any], dict[str, MatrixView]]:
    """A function from a tree to its views, which decides once for trees of one form."""
    known: dict[Any, dict[str, MatrixView]] = {}

    def views_in(tree: Any) -> dict[str, MatrixView]:
        leaves, structure = jax.tree.flatten(tree)
        kind = lambda x: (getattr(x, "shape", None), getattr(x, "dtype", None))
        form = structure, tuple(map(kind, leaves))
        if form not in known:
            known[form] = views_of(decide(tree, dimension_numbers))
        return known[form]

    return views_in


def _measured(
    measures: Mapping[str, Callable[..., jax.Array]],
    views: Mapping[str, MatrixView],
    leaves: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, jax.Array]]:
    """The value of each measure and path; ``leaves`` has its arguments by path."""

    def value(measure, path):
        axes = _axes(views.get(path), leaves["u"][path])
        have = {n: x[path] for n, x in leaves.items() if path in x}
        of = lambda have: measure(axes, **have).astype(jnp.float32)
        return without_axes(of, axes, have["u"])(have)

    return {
        name: {path: value(measure, path) for path in leaves["u"]}
        for name, measure in measures.items()
    }


def _zeros(view: Any, leaf: Any) -> jax.Array:
    """A zero for each matrix of a leaf, or for a leaf that is none."""
    batch = () if view is None else tuple(leaf.shape[a] for a in view.batch_axes)
    zeros = lambda _: jnp.zeros(batch, jnp.float32)
    return without_axes(zeros, _axes(view, leaf), leaf)(leaf)


def _axes(view: Any, leaf: Any) -> tuple[int, ...]:
    """The axes of a leaf over which a matrix extends."""
    if view is None:
        return tuple(range(leaf.ndim))
    return view.output_axes + view.reduction_axes


def _with_outer(wanted: Mapping[str, Measure]) -> dict[str, Measure]:
    """What is wanted here, and by the monitors around this one."""
    asked = here().measures
    for name, measure in wanted.items():
        if asked.get(name, measure) != measure:
            raise ValueError(
                "`captures` and `every` must name the same steps in a monitor inside "
                f"of another, got {_steps(asked[name])} and {_steps(measure)} for "
                f"{name!r}; name all of them in one."
            )
    return {**asked, **wanted}


def _steps(measure: Measure) -> str:
    return f"every={measure.every}" if measure.steps is None else str(measure.steps)


def _check_wanted(measures: Any, captures: Any) -> None:
    """Raises unless these are measures and captures of `monitor`."""
    known = [*OF_UPDATES, *OF_STACKS]
    if isinstance(measures, str) or not set(measures) <= set(known):
        raise ValueError(
            f"`measures` must be a tuple of names from {', '.join(known)}, got "
            f"{measures!r}."
        )
    for name, steps in captures.items():
        if name not in ("direction", "momentum", "polar_input"):
            raise ValueError(
                "`captures` must be of direction, momentum or polar_input, got "
                f"{name!r}."
            )
        if not steps or any(not isinstance(s, int) or s < 0 for s in steps):
            raise ValueError(
                f"`captures` must have steps that are integers from 0 on, got "
                f"{steps!r} for {name!r}."
            )


def _check_reports(wanted: Mapping[str, Measure], state: Any) -> None:
    """Raises if no block reports what a measure needs."""
    states: list[Any] = [s for _, s in states_in(state) if s.manifest and wanted]
    measured = {name for s in states for name in values_of(s)}
    for name, measure in wanted.items():
        if states and name not in measured:
            blocks = " and ".join(BLOCKS[need] for need in measure.needs)
            raise ValueError(
                f"`measures` and `captures` must be of blocks that the optimizer has, "
                f"got {name!r}, which needs {blocks}; leave it out."
            )
