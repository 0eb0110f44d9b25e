"""RACS's step, with as few readings of the gradient as its formulas allow."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import AtLeastOne, Decay, Positive, PositiveInt, checked
from optax_matrix._surroundings.observation import is_observed, report
from optax_matrix._surroundings.peaks import peak_of
from optax_matrix.linalg import rank_one_scales
from optax_matrix.linalg.products import times
from optax_matrix.linalg.scale import (
    inverse,
    kept_apart,
    peak_or_one,
    roots_with_floor,
    safe_divide,
    safe_root,
    squares_of,
    unit_max,
    widened,
)
from optax_matrix.transforms.equilibration._equilibrate_with_ema import (
    EquilibrateWithEmaState,
    equilibrate_with_ema,
    mix_roots,
    mix_weight,
    unzip,
)
from optax_matrix.transforms.update_size import (
    LimitNormGrowthState,
    limit_norm_growth,
    limited_norm,
)


@checked
def equilibrate_rank_one(
    decay: Decay = 0.9,
    *,
    rounds: PositiveInt = 5,
    bias_correction: bool = False,
    max_rms: AtLeastOne | None = 4.0,
    max_growth: AtLeastOne = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    scale: Positive = 1.0,
) -> optax.GradientTransformationExtraArgs:
    r"""RACS's step: the chain of `equilibrate_with_ema` and `limit_norm_growth`.

    Results and state are those of the chain of `equilibrate_with_ema` by
    `rank_one_scales`, `limit_norm_growth` and `optax.scale`. A step of k rounds needs
    ``2 k + 1`` readings of a matrix, and the chain needs several more. With
    :math:`m \le n` (otherwise columns take the place of rows), let P be :math:`G^2`
    and a, b the averaged square roots :math:`\sqrt{q_t}, \sqrt{s_t}`. Then
    :math:`\tilde G_{ij} = G_{ij} / (a_i b_j)`, and all that bound and limit need of it
    follows from two vectors:

    .. math::
        \mathrm{rms}(\tilde G_i)^2 &= (P b^{-2})_i / (n a_i^2), \\
        \sum_{ij} a_i^4 b_j^4 \tilde G_{ij}^2 &= \sum_i a_i^2 (P b^2)_i, \\
        \|\mathrm{diag}(c) \tilde G\|_F^2 &=
        n \sum_i c_i^2 \, \mathrm{rms}(\tilde G_i)^2.

    As b depends on s alone, :math:`P b^2` and :math:`P b^{-2}` come from the reading
    that the last round needs for :math:`P s`. The first round's :math:`P^\top 1` are
    sums of squares, which also give the divisor that keeps P in range.

    Args:
        decay: As in `equilibrate_with_ema`.
        rounds: As in `rank_one_scales`.
        bias_correction: As in `equilibrate_with_ema`.
        max_rms: As in `equilibrate_with_ema`.
        max_growth: As in `limit_norm_growth`.
        max_shrink: As in `limit_norm_growth`.
        scale: Factor of the update.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``. In float32, entries
        below 1e-19 of the largest of their matrix count as zero: their squares vanish.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix.transforms.equilibration import equilibrate_rank_one
        >>> tx = equilibrate_rank_one(0.75, bias_correction=True)
        >>> w = {"w": jnp.array([[1.0, 2.0], [3.0, -6.0]])}
        >>> updates, state = tx.update(w, tx.init(w))
        >>> updates["w"].round(3).tolist()
        [[1.0, 1.0], [1.0, -1.0]]

    References:
        `Structured Fisher <https://arxiv.org/abs/2502.07752>`_, Algorithm 1 (RACS).
    """
    scales = partial(rank_one_scales, rounds=rounds)
    options = {"bias_correction": bias_correction, "max_rms": max_rms}
    averaged = equilibrate_with_ema(scales, decay, **options)
    limited = limit_norm_growth(max_growth, max_shrink=max_shrink)

    def init_fn(params):
        return averaged.init(params), limited.init(params), optax.EmptyState()

    def one(x, row, col, weight, last):
        peak = peak_of(x)
        if is_tall := x.shape[-2] > x.shape[-1]:
            x, row, col = x.mT, col, row
        new, row, col, *rest = wide(x, peak, row, col, weight, last)
        return (new.mT, col, row, *rest) if is_tall else (new, row, col, *rest)

    def wide(x, peak, row, col, weight, last):
        """A step of matrices with at least as many columns as rows."""
        m, n = x.shape[-2:]
        y, p, sums, divisor = _squares(widened(x), peak)
        live = jnp.max(sums, axis=-1) != 0

        s = _after_rounds(p, sums / m, rounds - 1)
        new_col = divisor * roots_with_floor(s, sums > 0)
        col = mix_roots(col, new_col, decay, live)

        over_b, unit = _inverse_over(col, new_col)
        # Kept apart, so that XLA on CUDA reads P once for all three.
        vectors = kept_apart((s, unit_max(col) ** 2, over_b**2))
        q, by_b, by_inverse = (times(p, v) for v in vectors)
        is_row = (by_b > 0) | (by_inverse > 0)
        q *= inverse(_square_norm(s))
        row = mix_roots(row, roots_with_floor(q, is_row), decay, live)
        weight = mix_weight(weight, decay, live)
        grown = 1 if weight is None else jnp.where(weight > 0, weight, 1)[..., None]
        over_a = grown * inverse(row)
        rms = safe_divide(divisor, unit) * over_a * safe_root(by_inverse / n)
        if max_rms is not None:
            usual = grown * divisor * _weighted_rms(row, col, by_b)
            factor = _bounding(rms, max_rms * jnp.clip(usual, 1, 1 / (1 - decay)))
            rms, over_a = rms * factor, over_a * factor
        norm = n**0.5 * _norm(rms)[..., None]
        size, kept = limited_norm(norm, last, max_growth, max_shrink)
        shrunk = jnp.where(size < norm, safe_divide(size, norm), 1)
        left = scale * shrunk[..., 0] * over_a
        left, right = kept_apart((left, safe_divide(divisor, col)))
        new = y * right[..., None, :] * left[..., :, None]
        return new.astype(x.dtype), row, col, weight, kept, size < norm

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        (row, col, weight), (norm,), factor = state
        out = jax.tree.map(one, updates, row, col, weight, norm)
        updates, row, col, weight, norm, is_limited = unzip(updates, out, 6)
        if is_observed():
            flat = lambda x: x[..., 0, 0].astype(jnp.float32)
            report("limited", jax.tree.map(flat, is_limited))
        averages = EquilibrateWithEmaState(row, col, weight)
        return updates, (averages, LimitNormGrowthState(norm), factor)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _squares(x, peak):
    """A matrix in range, its squares, their sums over rows, and the divisor.

    Matrices ``(..., m, n)`` give sums ``(..., n)`` and divisors ``(..., 1)``. Their
    largest entries are ``peak``, if that is known.
    """
    sums, divisor = squares_of(x, peak_or_one(x, peak), -2, peak is not None)
    y = x / divisor
    y = jnp.where(jnp.abs(y) < jnp.finfo(y.dtype).tiny ** 0.5, 0, y)
    return y, y * y, sums[..., 0, :], divisor[..., 0]


def _after_rounds(p, s, rounds):
    """The vector of the columns after rounds of `rank_one_scales`."""
    for _ in range(rounds):
        q = times(p, s) * inverse(_square_norm(s))
        s = times(p.mT, q) * inverse(_square_norm(q))
    return s


def _inverse_over(col, new):
    """``unit / col`` where ``new`` is not zero, and a unit for which squares fit.

    It is the largest of ``new``, which floors make at most 1e15 times (and the decay)
    the least of ``col``; or that least if the memory is of much larger gradients.
    """
    over = jnp.where(new > 0, inverse(col), 0)
    least = inverse(jnp.max(over, axis=-1, keepdims=True))
    unit = jnp.maximum(jnp.max(new, axis=-1, keepdims=True), least)
    unit = jax.lax.stop_gradient(unit)
    return over * unit, unit


def _bounding(rms, largest):
    """Factors that bring root mean squares to at most the largest."""
    return jnp.where(rms > largest, safe_divide(largest, rms), 1)


def _weighted_rms(row, col, by_col):
    """Root of the mean square of a result, its squared scales being the weights.

    ``by_col`` is P times the squares of ``unit_max(col)``.
    """
    a, b = unit_max(row), unit_max(col)
    squares = jnp.sum(a**2 * by_col, axis=-1, keepdims=True)
    weights = _square_norm(a**2) * _square_norm(b**2)
    size = safe_root(safe_divide(squares, weights))
    for v in (row, col):
        size = safe_divide(size, jnp.max(v, axis=-1, keepdims=True))
    return size


def _square_norm(v):
    return jnp.sum(v * v, axis=-1, keepdims=True)


def _norm(v):
    """The norm of a nonnegative vector."""
    largest = jax.lax.stop_gradient(jnp.max(v, axis=-1, keepdims=True))
    return largest * safe_root(_square_norm(safe_divide(v, largest)))
