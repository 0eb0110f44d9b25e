"""Numbers that summarize the singular values of matrices."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from optax_matrix._arguments import NotNegative, PositiveInt, checked
from optax_matrix.linalg import lapack
from optax_matrix.linalg.scale import as_work, safe_divide, unit_max, unit_peak


def singular_values(x: ArrayLike) -> jax.Array:
    """The singular values of matrices, in descending order.

    Costs a singular value decomposition without vectors, as do all functions that are
    computed from it.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        Values ``(..., min(m, n))``, at least float32.

    Raises:
        ValueError: If ``x`` has fewer than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(singular_values(jnp.array([[0.0, 2.0], [3.0, 0.0]])).round())
        [3. 2.]

    References:
        POET, Figures 1 and 15 to 20; SUMO, Figure 1(b).
    """
    y, peak = unit_peak(as_work(jnp.asarray(x)))
    return peak[..., 0] * lapack.singular_values(y)


def stable_rank(x: ArrayLike) -> jax.Array:
    r"""The squared Frobenius norm divided by the squared spectral norm.

    .. math::
        \mathrm{sr}(X) = \|X\|_F^2 / \|X\|_2^2

    Costs a singular value decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        One number per matrix from 1 to its rank; 0 for a zero matrix.

    Raises:
        ValueError: As in `singular_values`.

    Examples:
        >>> import jax.numpy as jnp
        >>> float(stable_rank(jnp.diag(jnp.array([2.0, 1.0, 0.0]))))
        1.25

    References:
        MuonEq, Theorem 3.1 and Figure 6.
    """
    return jnp.sum(jnp.square(_relative(x)), axis=-1)


@checked
def condition_number(
    x: ArrayLike, *, rank: PositiveInt | None = None, rtol: NotNegative | None = None
) -> jax.Array:
    r"""The largest singular value divided by the smallest one.

    .. math::
        \kappa(X) = \sigma_1 / \sigma_r

    Costs a singular value decomposition without vectors. In float32, singular values
    below about 1e-7 of the largest are rounding errors, and so are larger results.

    Args:
        x: Matrices ``(..., m, n)``.
        rank: The r of the formula, clipped to the shorter side; None for all values.
        rtol: Values up to ``rtol`` times the largest count as zeros and are left out,
            so that r is the numerical rank, as in MuonEq; None to leave out nothing.

    Returns:
        One number per matrix, at least 1; infinity if the smallest value is zero, and
        for a zero matrix.

    Raises:
        ValueError: If ``rank`` or ``rtol`` is out of range; as in `singular_values`.

    Examples:
        >>> import jax.numpy as jnp
        >>> x = jnp.diag(jnp.array([8.0, 2.0, 0.0]))
        >>> float(condition_number(x)), float(condition_number(x, rtol=1e-6))
        (inf, 4.0)

    References:
        MuonEq, Theorem 3.1 (with ``rtol``); SUMO, Figure 1(a) (with ``rank=16``; the
        figure may show that of :math:`X X^\top`, which is the square).
    """
    s = _relative(x)[..., :rank]
    if rtol is not None:
        s = jnp.where(s > rtol, s, s[..., :1])
    smallest = jnp.min(s, axis=-1)
    return jnp.where(smallest == 0, jnp.inf, 1 / jnp.where(smallest == 0, 1, smallest))


def spectral_entropy(x: ArrayLike) -> jax.Array:
    r"""The entropy of the shares of the energy that singular directions hold.

    .. math::
        H(X) = -\sum_i p_i \log p_i, \qquad p_i = \sigma_i^2 / \|X\|_F^2

    Costs a singular value decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        One number per matrix from 0 (rank one) to ``log(min(m, n))`` (all singular
        values are equal); 0 for a zero matrix.

    Raises:
        ValueError: As in `singular_values`.

    Examples:
        >>> import jax.numpy as jnp
        >>> round(float(spectral_entropy(5 * jnp.eye(3))), 4)  # log(3)
        1.0986

    References:
        MuonEq, Figure 6.
    """
    return jnp.sum(jax.scipy.special.entr(_shares(x)), axis=-1)


def effective_rank(x: ArrayLike) -> jax.Array:
    """The number of equal singular values that have the same `spectral_entropy`.

    It is the exponential of that entropy, so its shares are those of the energy
    (squared singular values). Costs a singular value decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.

    Returns:
        One number per matrix from 1 to its rank; 0 for a zero matrix.

    Raises:
        ValueError: As in `singular_values`.

    Examples:
        >>> import jax.numpy as jnp
        >>> round(float(effective_rank(jnp.diag(jnp.array([1.0, 1.0, 0.0])))), 4)
        2.0

    References:
        SUMO, Section 3 (low rank of the moments). Deviation from Roy and Vetterli,
        2007: their shares are those of the singular values themselves.
    """
    p = _shares(x)
    entropy = jnp.sum(jax.scipy.special.entr(p), axis=-1)
    return jnp.where(p[..., 0] == 0, 0, jnp.exp(entropy))


@checked
def tail_energy(x: ArrayLike, rank: PositiveInt) -> jax.Array:
    r"""The share of the energy outside the best approximation of a given rank.

    .. math::
        \|X - X_k\|_F^2 / \|X\|_F^2 = \sum_{i > k} \sigma_i^2 / \sum_i \sigma_i^2

    Costs a singular value decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.
        rank: The rank k of the approximation.

    Returns:
        One number per matrix from 0 to 1; 0 for a zero matrix.

    Raises:
        ValueError: If ``rank`` is not a positive int; as in `singular_values`.

    Examples:
        >>> import jax.numpy as jnp
        >>> round(float(tail_energy(jnp.diag(jnp.array([3.0, 1.0])), 1)), 4)
        0.1

    References:
        SUMO, Lemma 3.1, Eq. 1, with ``rank=1``.
    """
    return jnp.sum(_shares(x)[..., rank:], axis=-1)


def _relative(x: ArrayLike) -> jax.Array:
    """The singular values divided by the largest; zeros for a zero matrix."""
    return unit_max(singular_values(x))


def _shares(x: ArrayLike) -> jax.Array:
    """The share of the energy of each singular direction, in descending order."""
    energy = jnp.square(_relative(x))
    return safe_divide(energy, jnp.sum(energy, axis=-1, keepdims=True))
