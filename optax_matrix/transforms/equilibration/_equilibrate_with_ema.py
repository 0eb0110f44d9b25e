"""Equilibration by scales that are averaged over time (RACS, NorMuon)."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix.arguments import (
    Decay,
    check_callable,
    checked,
)
from optax_matrix.linalg.scale import unit_peak, work_dtype
from optax_matrix.transforms.numerics import safe_divide, widened

Statistics = Annotated[
    Callable[[jax.Array], tuple[jax.Array | None, jax.Array | None]], check_callable
]


class EquilibrateWithEmaState(NamedTuple):
    """State of `equilibrate_with_ema`.

    Attributes:
        row_scale: Per leaf the averaged row scales, shape ``(..., m)``, at least
            float32, or None if the statistic has none. Square roots of the average.
        col_scale: The same for columns, shape ``(..., n)``.
        weight: Per leaf the sum of the average's weights, ``1 - decay**t`` after ``t``
            gradients, shape ``(...)``; None without bias correction.
    """

    row_scale: Any
    col_scale: Any
    weight: Any


@checked
def equilibrate_with_ema(
    statistics: Statistics,
    decay: Decay,
    *,
    bias_correction: bool = False,
) -> optax.GradientTransformationExtraArgs:
    r"""Divides rows and columns by the root of averaged second moments.

    .. math::
        q_t = \beta q_{t-1} + (1 - \beta) q, \quad
        s_t = \beta s_{t-1} + (1 - \beta) s, \quad
        \tilde{G}_t = \mathrm{diag}(q_t)^{-1/2} G_t \, \mathrm{diag}(s_t)^{-1/2}

    where :math:`\beta` is ``decay`` and ``statistics`` gives :math:`\sqrt q, \sqrt s`
    of the present matrix. The state holds the roots, too, and averages them without
    squaring, so that gradients of 1e20 and 1e-20 neither overflow nor vanish. A matrix
    that is all zero leaves its state alone; rows and columns that have always been
    zero stay zero.

    The average itself remembers a gradient of 1e20 for about
    :math:`\ln(10^{40}) / (-\ln\beta)` steps, 900 for a decay of 0.9, as a linear
    momentum does for half of that; updates are finite and nearly zero meanwhile.
    Chain `optax.clip_by_global_norm` in front.

    Args:
        statistics: Function from matrices ``(..., m, n)`` to ``(row, col)``, root
            scales of shape ``(..., m)`` and ``(..., n)``; either may be None.
            `rank_one_scales` for RACS, `row_rms` for NorMuon.
        decay: Decay rate :math:`\beta` of both averages, in ``[0, 1)``.
        bias_correction: Divide the averages by :math:`1 - \beta^t`. Without it they
            start at zero, and the first update is larger by :math:`(1-\beta)^{-1/2}`
            for each of the two scales.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``statistics`` cannot be called or ``decay`` is not in [0, 1).

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.equilibrate_with_ema(om.row_rms, 0.75)
        >>> w = {"w": jnp.array([[3.0, 4.0], [0.0, 0.0]])}
        >>> updates, state = tx.update(w, tx.init(w))
        >>> updates["w"].round(3).tolist()
        [[1.697..., 2.263...], [0.0, 0.0]]
    """

    def init_fn(params):
        def start(p):
            abstract = jax.eval_shape(lambda x: statistics(widened(x)), p)
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract)

        scales = jax.tree.map(start, params)
        row, col = _unzip(params, scales, 2)
        weight = jax.tree.map(_zero_weight if bias_correction else _nothing, params)
        return EquilibrateWithEmaState(row, col, weight)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args

        def step(x, row, col, weight):
            wide = widened(x)
            live = jnp.any(wide != 0, axis=(-2, -1))
            new_row, new_col = statistics(wide)
            row = _mix_roots(row, new_row, decay, live)
            col = _mix_roots(col, new_col, decay, live)
            if weight is not None:
                mixed = decay * weight + (1 - decay)
                weight = jnp.where(live, mixed, weight).astype(weight.dtype)
            scaled = _divided(wide, row, col, weight)
            return scaled.astype(x.dtype), row, col, weight

        out = jax.tree.map(
            step, updates, state.row_scale, state.col_scale, state.weight
        )
        updates, *state = _unzip(updates, out, 4)
        return updates, EquilibrateWithEmaState(*state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _zero_weight(p):
    return jnp.zeros(p.shape[:-2], work_dtype(p.dtype))


def _nothing(p):
    del p


def _unzip(like, tree, width):
    """A tree of tuples as a tuple of trees, in the structure of `like`."""
    structure = jax.tree.structure(like)
    rows = structure.flatten_up_to(tree)
    return tuple(structure.unflatten([row[i] for row in rows]) for i in range(width))


def _mix_roots(old, new, decay, live):
    """Root of the average of two squares, with the squares never formed."""
    if old is None:
        return None
    decay = jnp.asarray(decay, old.dtype)
    mixed = jnp.hypot(jnp.sqrt(decay) * old, jnp.sqrt(1 - decay) * new)
    return jnp.where(live[..., None], mixed, old)


def _divided(x, row, col, weight):
    root = (
        1 if weight is None else jnp.sqrt(jnp.where(weight > 0, weight, 1))[..., None]
    )
    if col is not None:
        x = safe_divide(x, (col / root)[..., None, :])
    if row is not None:
        x = safe_divide(x, (row / root)[..., :, None])
    return x


def row_rms(x: jax.Array) -> tuple[jax.Array, None]:
    """Root mean square of every row, as a statistic for `equilibrate_with_ema`.

    Args:
        x: Matrices of shape ``(..., m, n)``.

    Returns:
        ``(row, None)``: row of shape ``(..., m)``, at least float32, and no column
        scale.
    """
    y, peak = unit_peak(widened(x))
    return peak[..., 0] * jnp.sqrt(jnp.mean(y * y, axis=-1)), None
