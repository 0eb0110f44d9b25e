"""Statistics of updates while a model trains, kept in the optimizer's state."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import optax

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._mesh import without_axes
from optax_matrix._paths import named_leaves
from optax_matrix._surroundings import here, within
from optax_matrix._surroundings.observation import Measure, at_every
from optax_matrix.diagnostics._measures import (
    BLOCKS,
    OF_STACKS,
    OF_UPDATES,
    check_wanted,
    itself,
)
from optax_matrix.diagnostics._monitor_state import MonitorState, crc_of, values_of
from optax_matrix.matrices.decisions import decide
from optax_matrix.tree.state import states_in


@checked
def monitor(
    inner: optax.GradientTransformation,
    measures: Sequence[str] = ("update_rms", "update_to_weight"),
    *,
    every: PositiveInt = 1,
    captures: Mapping[str, Sequence[int]] | None = None,
    dimension_numbers: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Measures the updates of an optimizer; they pass unchanged.

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
        every: Steps from one measurement to the next, the first step being measured.
            In between the state keeps the last values, and measures cost nothing.
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
    often = lambda name: dataclasses.replace(OF_STACKS[name], every=every)
    wanted = {name: often(name) for name in measures if name in OF_STACKS}
    wanted |= {n: Measure(itself, (n,), tuple(s)) for n, s in captures.items()}
    keeps_previous = "update_cosine" in measures

    def init_fn(params):
        with within(measures=_with_outer(wanted)):
            state = inner.init(params)
        if type(params).__name__ == "_ParamsPlaceholder":  # Of optax.tree.map_params.
            previous = params if keeps_previous else None
            count = None if every == 1 else _OPAQUE
            return MonitorState(_OPAQUE, _OPAQUE, previous, state, count)
        _check_reports(wanted, state)
        decisions = decide(params, dimension_numbers)

        def start(path, leaf):
            view = decisions[path].view
            zeros = lambda _: jnp.zeros(_batch(view, leaf), jnp.float32)
            return without_axes(zeros, _axes(view, leaf), leaf)(leaf)

        leaves = named_leaves(params)
        paths = {path: jnp.asarray(crc_of(path)) for path in leaves}
        values = {n: {p: start(p, x) for p, x in leaves.items()} for n in outer}
        previous = optax.tree.zeros_like(params) if keeps_previous else None
        count = None if every == 1 else jnp.zeros((), jnp.int32)
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
        decisions = decide(new if params is None else params, dimension_numbers)

        def value(measure, path):
            axes = _axes(decisions[path].view, leaves["u"][path])
            have = {n: x[path] for n, x in leaves.items() if path in x}
            of = lambda have: measure(axes, **have).astype(jnp.float32)
            return without_axes(of, axes, have["u"])(have)

        new_values = lambda: {
            name: {path: value(measure, path) for path in leaves["u"]}
            for name, measure in outer.items()
        }
        count = state.count
        values = at_every(every, count, new_values, state.values)
        previous = None
        if keeps_previous:  # In the dtype of `init`, or a scan would refuse the state.
            previous = optax.tree.cast_like(new, state.previous)
        count = None if count is None else count + 1
        return new, MonitorState(state.paths, values, previous, inner_state, count)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


_OPAQUE: Any = object()  # `optax.tree.map_params` finds no parameters below it.


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
    measured = {name for s in states for name in values_of(s)}
    for name, measure in wanted.items():
        if states and name not in measured:
            blocks = " and ".join(BLOCKS[need] for need in measure.needs)
            raise ValueError(
                f"`measures` and `captures` must be of blocks that the optimizer has, "
                f"got {name!r}, which needs {blocks}; leave it out."
            )
