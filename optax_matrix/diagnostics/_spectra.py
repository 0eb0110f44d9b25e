"""Numbers that follow from the singular values of matrices."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_matrix._arguments import NotNegative, PositiveInt, checked
from optax_matrix.linalg import JORDAN, lapack
from optax_matrix.linalg.coefficients import rows_for
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


@checked
def newton_schulz_errors(
    x: ArrayLike,
    steps: PositiveInt = 5,
    *,
    coefficients: Sequence[Sequence[float]] | np.ndarray = JORDAN,
) -> jax.Array:
    r"""The relative distance to the polar factor after each Newton-Schulz step.

    .. math::
        e_k = \frac{1}{\sqrt r} \|X_k - \mathrm{Orth}(X)\|_F
            = \Big(\frac{1}{r} \sum_i (1 - s_i^{(k)})^2\Big)^{1/2},
        \qquad s_i^{(k+1)} = a s_i^{(k)} + b (s_i^{(k)})^3 + c (s_i^{(k)})^5

    from :math:`s_i^{(0)} = \sigma_i / \|X\|_F`, where r is the numerical rank. This is
    the error in exact arithmetic, of `linalg.newton_schulz` with ``eps=0``. Costs a
    singular value decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.
        steps: Number of steps.
        coefficients: Rows ``(a, b, c)``, one per step; the last one is repeated.

    Returns:
        Errors after 0, 1, ..., ``steps`` steps, ``(..., steps + 1)``; 0 for a zero
        matrix.

    Raises:
        ValueError: If ``steps`` or ``coefficients`` is malformed; if ``x`` has fewer
            than two axes or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix.linalg import CUBIC
        >>> errors = newton_schulz_errors(jnp.eye(4), 3, coefficients=CUBIC)
        >>> [f"{e:.3f}" for e in errors]
        ['0.500', '0.312', '0.131', '0.025']

    References:
        MuonEq, Theorem 3.1 (left side), Figures 1 and 2.
    """
    rows = rows_for(coefficients, steps)
    s = _relative(x)
    live = s > 10 * float(jnp.finfo(s.dtype).eps)  # As in `polar_svd`.
    s = safe_divide(s, jnp.sqrt(jnp.sum(s * s, axis=-1, keepdims=True)))
    rank = jnp.sum(live, axis=-1).astype(s.dtype)

    def error(s: jax.Array) -> jax.Array:
        total = jnp.sum(jnp.where(live, (1 - s) ** 2, 0), axis=-1)
        return jnp.sqrt(safe_divide(total, rank))

    errors = [error(s)]
    for a, b, c in rows:
        t = s * s
        s = s * (a + t * (b + t * c))
        errors.append(error(s))
    return jnp.stack(errors, axis=-1)


def _relative(x: ArrayLike) -> jax.Array:
    """The singular values divided by the largest; zeros for a zero matrix."""
    return unit_max(singular_values(x))
