"""Statistics of updates while a model trains, kept in the optimizer's state."""

import dataclasses
import math
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
from optax_matrix.diagnostics._monitor_state import MonitorState, crc_of, values_of
from optax_matrix.diagnostics._norms import orthogonality_error
from optax_matrix.linalg.lapack import svd
from optax_matrix.linalg.products import full_dot
from optax_matrix.linalg.scale import matrix_norm, safe_divide, widened
from optax_matrix.matrices.decisions import decide
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
    wanted |= {n: Measure(_itself, (n,), tuple(s)) for n, s in captures.items()}
    keeps_previous = "update_cosine" in measures

    def init_fn(params):
        with within(measures=_with_outer(wanted)):
            state = inner.init(params)
        if type(params).__name__ == "_ParamsPlaceholder":  # Of optax.tree.map_params.
            previous = params if keeps_previous else None
            count = None if every == 1 else _OPAQUE
            return MonitorState(_OPAQUE, _OPAQUE, previous, state, count)
        _check_reports(wanted, state)
        decisions, leaves = decide(params, dimension_numbers), named_leaves(params)
        zero = lambda path: _zeros(decisions[path].view, leaves[path])
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
        decisions = decide(new if params is None else params, dimension_numbers)
        measured = lambda: _measured(outer, decisions, leaves)
        values = at_every(every, state.count, measured, state.values)
        previous = None
        if keeps_previous:  # In the dtype of `init`, or a scan would refuse the state.
            previous = optax.tree.cast_like(new, state.previous)
        count = None if state.count is None else state.count + 1
        return new, MonitorState(state.paths, values, previous, inner_state, count)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _measured(
    measures: Mapping[str, Callable[..., jax.Array]],
    decisions: Mapping[str, Any],
    leaves: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, jax.Array]]:
    """The value of each measure and path; ``leaves`` has its arguments by path."""

    def value(measure, path):
        axes = _axes(decisions[path].view, leaves["u"][path])
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


def _scaled(x, axes):
    """An array divided by its largest entry, whose squares do not vanish; the entry."""
    x = widened(x)
    peak = jnp.max(jnp.abs(x), axis=axes, keepdims=True, initial=0)
    return safe_divide(x, peak), jnp.squeeze(peak, axes)


def _square(x):
    return jnp.real(x * jnp.conj(x))


def _norm(x, axes):
    """Norms in one pass; in two if a sum of squares overflows or underflows."""
    x = widened(x)
    plain = jnp.sum(_square(x), axes)
    limits = jnp.finfo(x.dtype)
    is_exact = (plain > limits.tiny / limits.eps**2) & (plain < limits.max)

    def careful(x, _):
        unit, peak = _scaled(x, axes)
        return peak * jnp.sqrt(jnp.sum(_square(unit), axes))

    of_plain = lambda _, plain: jnp.sqrt(plain)
    return jax.lax.cond(jnp.all(is_exact), of_plain, careful, x, plain)


def _cosine(x, y, axes):
    x, y = _scaled(x, axes)[0], _scaled(y, axes)[0]
    norms = jnp.sqrt(jnp.sum(_square(x), axes) * jnp.sum(_square(y), axes))
    return safe_divide(jnp.sum(jnp.real(x * jnp.conj(y)), axes), norms)


def _rms(axes, u, **_):
    count = math.prod(u.shape[a] for a in axes)
    return _norm(u, axes) / max(count, 1) ** 0.5


def _orthogonality_error(d):
    """Of the direction, divided by the mean norm of the vectors of its shorter side."""
    size = matrix_norm(d) / min(d.shape[-2:]) ** 0.5
    return orthogonality_error(safe_divide(widened(d), size))


def _outside(d, m):
    """Share of the direction outside of the columns and rows of the momentum."""
    d, m = (widened(x) for x in (d, m))
    d = safe_divide(d, jnp.max(jnp.abs(d), axis=(-2, -1), keepdims=True))
    u, s, vt = svd(m)
    noise = jnp.finfo(s.dtype).eps * max(m.shape[-2:]) * s[..., :1]
    live = (s > noise).astype(d.dtype)
    u, vt = u * live[..., None, :], vt * live[..., :, None]
    inside = full_dot(u, full_dot(full_dot(full_dot(u.mT, d), vt.mT), vt))
    square = lambda x: jnp.sum(x * x, axis=(-2, -1))
    return safe_divide(square(d - inside), square(d))


def _itself(x):
    return x


OF_UPDATES: dict[str, Callable[..., jax.Array]] = {
    "update_rms": _rms,
    "update_to_weight": lambda axes, u, w, **_: safe_divide(
        _norm(u, axes), _norm(w, axes)
    ),
    "gradient_cosine": lambda axes, u, g, **_: -_cosine(u, g, axes),
    "update_cosine": lambda axes, u, last, **_: _cosine(u, last, axes),
}
OF_STACKS = {
    "orthogonality_error": Measure(_orthogonality_error, ("direction",)),
    "outside_momentum": Measure(_outside, ("direction", "momentum")),
    "limited": Measure(_itself, ("limited",)),
    "bounded": Measure(_itself, ("bounded",)),
}
# Which block reports a value.
BLOCKS = {
    "direction": "on_matrices",
    "momentum": "momentum",
    "polar_input": "orthogonalize",
    "limited": "limit_norm_growth",
    "bounded": "scale_by_second_moment",
}
