"""Equilibration with scales that are averaged over time (RACS, NorMuon)."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import AtLeastOne, Decay, check_callable, checked
from optax_matrix.linalg.products import times
from optax_matrix.linalg.scale import (
    is_some,
    safe_divide,
    safe_root,
    unit_max,
    unit_peak,
    widened,
    work_dtype,
)

Statistics = Annotated[
    Callable[[jax.Array], tuple[jax.Array | None, jax.Array | None]], check_callable
]


class EquilibrateWithEmaState(NamedTuple):
    """State of `equilibrate_with_ema`.

    Attributes:
        row_scale: Per leaf the square roots of the averaged row statistics, shape
            ``(..., m)``, at least float32; None if ``statistics`` gives none.
        col_scale: The same for columns, shape ``(..., n)``.
        weight: Per leaf the total weight in the average, ``1 - decay**t`` after ``t``
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
    max_rms: AtLeastOne | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Divides rows and columns by the square root of averaged second moments.

    .. math::
        q_t = \beta q_{t-1} + (1 - \beta) q, \quad
        s_t = \beta s_{t-1} + (1 - \beta) s, \quad
        \tilde{G}_t = \mathrm{diag}(q_t)^{-1/2} G_t \, \mathrm{diag}(s_t)^{-1/2}

    where :math:`\beta` is ``decay`` and ``statistics`` computes
    :math:`\sqrt q, \sqrt s` from the current matrix. The state holds square roots too,
    and averages them without squaring, so that gradients of 1e20 and 1e-20 neither
    overflow nor vanish. A matrix that is all zero does not change its state. Rows and
    columns that have always been zero stay zero.

    A single gradient of 1e20 dominates the average for about
    :math:`\ln(10^{40}) / (-\ln\beta)` steps, 900 for a decay of 0.9; a linear momentum
    takes half as long to forget it. Updates are finite and nearly zero meanwhile. To
    avoid this, chain `optax.clip_by_global_norm` in front.

    Without bias correction the averages start at zero, and the first update is larger
    by :math:`(1-\beta)^{-1/2}` for each of the two scales.

    In general nothing bounds the result. At the fixed point of `rank_one_scales` the
    mean square of every row, weighted by :math:`s^2`, is one; but where scales are
    small beside the others, their weight is small too, and an entry may be as large as
    :math:`\|s\| / s_j` and :math:`\|q\| / q_i`. ``max_rms`` sets a bound: with
    :math:`m \le n` (otherwise columns take the place of rows), it multiplies row i by

    .. math::
        \min(1, \rho c / \mathrm{rms}(\tilde G_i)), \qquad
        c^2 = \sum_{ij} q_i^2 s_j^2 \tilde G_{ij}^2 / (\|q\|^2 \|s\|^2), \qquad
        1 \le c \le 1 / (1 - \beta)

    where :math:`\rho` is ``max_rms``, and c, the root of the weighted mean square of
    the whole matrix, is clipped to this range. No row exceeds the root mean square
    :math:`\rho / (1 - \beta)`, and no entry :math:`\sqrt{\max(m, n)}` times that.

    Args:
        statistics: Function from matrices ``(..., m, n)`` to ``(row, col)``, square
            roots of the row and column statistics, of shape ``(..., m)`` and
            ``(..., n)``; either may be None. `rank_one_scales` gives RACS, `row_rms`
            NorMuon.
        decay: Decay rate :math:`\beta` of both averages, in ``[0, 1)``.
        bias_correction: Whether to divide the averages by :math:`1 - \beta^t`.
        max_rms: Largest root mean square :math:`\rho` of a row, at least one, relative
            to that of the matrix as above; None for no bound.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``statistics`` is not callable, ``decay`` is not in [0, 1), or
            ``max_rms`` is below one.

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
        row, col = unzip(params, scales, 2)
        weight = jax.tree.map(_zero_weight if bias_correction else _nothing, params)
        return EquilibrateWithEmaState(row, col, weight)

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args

        def step(x, row, col, weight):
            wide = widened(x)
            live = is_some(wide)[..., 0, 0]
            new_row, new_col = statistics(wide)
            row = mix_roots(row, new_row, decay, live)
            col = mix_roots(col, new_col, decay, live)
            weight = mix_weight(weight, decay, live)
            scaled = _divided(wide, row, col, weight)
            if max_rms is not None:
                usual = _weighted_rms(wide, row, col)
                for scale in (row, col):  # Each is a root of an average.
                    if weight is not None and scale is not None:
                        usual *= jnp.sqrt(weight)
                scaled = _bounded(scaled, max_rms * jnp.clip(usual, 1, 1 / (1 - decay)))
            return scaled.astype(x.dtype), row, col, weight

        out = jax.tree.map(
            step, updates, state.row_scale, state.col_scale, state.weight
        )
        updates, *state = unzip(updates, out, 4)
        return updates, EquilibrateWithEmaState(*state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _zero_weight(p):
    return jnp.zeros(p.shape[:-2], work_dtype(p.dtype))


def _nothing(p):
    del p


def unzip(like, tree, width):
    """Turns a tree of tuples into a tuple of trees with the structure of `like`."""
    structure = jax.tree.structure(like)
    rows = structure.flatten_up_to(tree)
    return tuple(structure.unflatten([row[i] for row in rows]) for i in range(width))


def mix_roots(old, new, decay, live) -> Any:
    """Square root of the average of two squares, without forming the squares."""
    if old is None:
        return None
    decay = jnp.asarray(decay, old.dtype)
    mixed = jnp.hypot(jnp.sqrt(decay) * old, jnp.sqrt(1 - decay) * new)
    return jnp.where(live[..., None], mixed, old)


def mix_weight(weight, decay, live):
    """The total weight of an average with one more gradient."""
    if weight is None:
        return None
    mixed = decay * weight + (1 - decay)
    return jnp.where(live, mixed, weight).astype(weight.dtype)


def _divided(x, row, col, weight):
    root = (
        1 if weight is None else jnp.sqrt(jnp.where(weight > 0, weight, 1))[..., None]
    )
    if col is not None:
        x = safe_divide(x, (col / root)[..., None, :])
    if row is not None:
        x = safe_divide(x, (row / root)[..., :, None])
    return x


def _weighted_rms(x, row, col):
    """Root of the mean square of a result, its squared scales being the weights."""
    a = unit_max(jnp.ones_like(x[..., 0]) if row is None else row)
    b = unit_max(jnp.ones_like(x[..., 0, :]) if col is None else col)
    y, peak = unit_peak(x)
    squares = jnp.sum(a**2 * times(y * y, b**2), axis=-1)
    weights = jnp.sum(a**4, axis=-1) * jnp.sum(b**4, axis=-1)
    size = peak[..., 0, 0]
    for scale in (row, col):
        if scale is not None:
            largest = jax.lax.stop_gradient(jnp.max(scale, axis=-1))  # Cancels out.
            size = safe_divide(size, largest)
    return size * safe_root(safe_divide(squares, weights))


def _bounded(x, largest):
    """Shrinks rows to at most a root mean square.

    Or columns, if there are more rows than columns.
    """
    if x.shape[-2] > x.shape[-1]:
        return _bounded(x.mT, largest).mT
    # It cancels out, and the derivative of a maximum may divide by zero.
    peak = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    y = safe_divide(x, peak)
    rms = peak * safe_root(jnp.mean(y * y, axis=-1, keepdims=True))
    largest = largest[..., None, None]
    return jnp.where(rms > largest, x * safe_divide(largest, rms), x)


def row_rms(x: jax.Array) -> tuple[jax.Array, None]:
    """Root mean square of every row, a statistic for `equilibrate_with_ema`.

    Args:
        x: Matrices of shape ``(..., m, n)``.

    Returns:
        ``(row, None)``: the row scales, shape ``(..., m)``, at least float32, and no
        column scales.
    """
    y, peak = unit_peak(widened(x))
    return peak[..., 0] * safe_root(jnp.mean(y * y, axis=-1)), None
