"""How far Newton-Schulz iterations and preconditioned inputs are from a polar factor.

In exact arithmetic a Newton-Schulz iteration changes singular values alone, so its
error after any number of steps follows from the spectrum of its input.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from optax_matrix._arguments import Kernel, PositiveInt, checked
from optax_matrix.diagnostics._spectra import singular_values
from optax_matrix.linalg import JORDAN, polar_qr, rows_for
from optax_matrix.linalg.scale import as_work, matrix_norm, safe_divide, unit_max

Table = Sequence[Sequence[float]] | np.ndarray


@checked
def newton_schulz_errors(
    x: ArrayLike, steps: PositiveInt = 5, *, coefficients: Table = JORDAN
) -> jax.Array:
    r"""The relative distance to the polar factor after each Newton-Schulz step.

    .. math::
        e_k = \frac{1}{\sqrt r} \|X_k - \mathrm{Orth}(X)\|_F
            = \Big(\frac{1}{r} \sum_i (1 - s_i^{(k)})^2\Big)^{1/2},
        \qquad s_i^{(k+1)} = a s_i^{(k)} + b (s_i^{(k)})^3 + c (s_i^{(k)})^5

    from :math:`s_i^{(0)} = \sigma_i / \|X\|_F`, where r is the numerical rank. This is
    the error in exact arithmetic, of `linalg.newton_schulz` with ``eps=0``; for that
    of a kernel with its rounding errors see `finite_step_error`. Costs a singular value
    decomposition without vectors.

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
    s, live = _start(x)
    errors = [_mean_square_root((1 - s), live)]
    for a, b, c in rows:
        t = s * s
        s = s * (a + t * (b + t * c))
        errors.append(_mean_square_root(1 - s, live))
    return jnp.stack(errors, axis=-1)


@checked
def newton_schulz_bound(
    x: ArrayLike, steps: PositiveInt = 5, *, coefficients: Table = JORDAN
) -> jax.Array:
    r"""The lower bound of MuonEq's Theorem 3.1 on `newton_schulz_errors`.

    .. math::
        e_k \geq \Big(\frac{1}{r} \sum_i
            \big(1 - a^k \sigma_i / \|X\|_F\big)_+^2\Big)^{1/2}

    No step can multiply a singular value by more than a. If steps have different
    coefficients, the product of theirs takes the place of :math:`a^k`. Costs a singular
    value decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.
        steps: Number of steps.
        coefficients: Rows ``(a, b, c)``, one per step; the last one is repeated.

    Returns:
        Bounds after 0, 1, ..., ``steps`` steps, ``(..., steps + 1)``; 0 for a zero
        matrix.

    Raises:
        ValueError: If a row does not have ``a > 1`` and ``0 < a + b t + c t**2 <= a``
            for t from 0 to 1, as the theorem demands; as in `newton_schulz_errors`.

    Examples:
        >>> import jax.numpy as jnp
        >>> bound = newton_schulz_bound(jnp.diag(jnp.array([3.0, 0.04])), 2)
        >>> [f"{e:.3f}" for e in bound]
        ['0.698', '0.675', '0.595']

    References:
        MuonEq, Theorem 3.1, where
        :math:`\|X\|_F / \sigma_i = \kappa_i \sqrt{\mathrm{sr}(X)}`.
    """
    rows = rows_for(coefficients, steps)
    for row in rows:
        _check_row(row)
    s, live = _start(x)
    growth = np.cumprod([1.0, *(a for a, _, _ in rows)])
    # Beyond 1 / s a larger factor changes nothing; so float32 does not overflow.
    shortfall = [jnp.maximum(1 - min(float(g), 1e30) * s, 0) for g in growth]
    return jnp.stack([_mean_square_root(x, live) for x in shortfall], axis=-1)


def linear_regime_ends(x: ArrayLike, *, slope: float = JORDAN[0][0]) -> jax.Array:
    r"""The Newton-Schulz step at which each singular value is no longer tiny.

    .. math::
        \tau_i = \log_a (\|X\|_F / \sigma_i) = \log_a (\kappa_i \sqrt{\mathrm{sr}(X)})

    Before, the value just grows by the factor a with each step. So
    :math:`\log_a \sqrt{\mathrm{sr}}` is the step at which the first value gets near 1,
    and the last one needs :math:`\log_a \kappa` steps more. Costs a singular value
    decomposition without vectors.

    Args:
        x: Matrices ``(..., m, n)``.
        slope: The first coefficient a of the iteration, above 1.

    Returns:
        Real numbers of steps ``(..., min(m, n))``, in ascending order; infinity for
        singular values of zero, which never leave it.

    Raises:
        ValueError: If ``slope`` is not above 1; if ``x`` has fewer than two axes or no
            floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1e-3]])
        >>> print(linear_regime_ends(x, slope=10.0).round())
        [0. 3.]

    References:
        MuonEq, Theorem 3.1 and Remark 3.1.
    """
    if not slope > 1:
        raise ValueError(
            f"`slope` must be above 1, got {slope!r}; pass the first coefficient of "
            "the iteration, such as 3.4445 or 1.5."
        )
    s, live = _start(x)
    tau = -jnp.log(jnp.where(live, s, 1)) / jnp.log(jnp.asarray(slope, s.dtype))
    return jnp.where(live, tau, jnp.inf)


@checked
def finite_step_error(x: ArrayLike, polar: Kernel) -> jax.Array:
    r"""The distance of a kernel's result from the exact polar factor.

    .. math::
        \|\mathrm{NS}_K(X) - \mathrm{Orth}(X)\|_F

    Costs the kernel, and a QR of the long side with a singular value decomposition of
    the short side.

    Args:
        x: Matrices ``(..., m, n)``, scaled by the method to be measured, if it scales.
        polar: Function from matrices to approximate polar factors, such as
            `linalg.newton_schulz` or a ``functools.partial`` of it.

    Returns:
        One number per matrix, at least float32; 0 for a zero matrix if the kernel
        gives 0. Divided by the root of the rank it is the last of
        `newton_schulz_errors`, up to rounding.

    Raises:
        ValueError: If ``polar`` is not a function; if ``x`` has fewer than two axes or
            no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix.linalg import newton_schulz, scale_rows
        >>> m = jnp.diag(jnp.array([1.0, 1e-4]))
        >>> float(finite_step_error(m, newton_schulz)) > 0.9
        True
        >>> float(finite_step_error(scale_rows(m, eps=0.0), newton_schulz)) < 0.5
        True

    References:
        MuonEq, Eq. 5 (first term, of :math:`S(M)`), Figure 7 (above).
    """
    x = jnp.asarray(x)
    approximate = as_work(jnp.asarray(polar(x)))
    return matrix_norm(approximate - polar_qr(as_work(x)))[..., 0, 0]


@checked
def preconditioning_bias(x: ArrayLike, scaling: Kernel) -> jax.Array:
    r"""The distance between the polar factors with and without a scaling before.

    .. math::
        \|\mathrm{Orth}(S(X)) - \mathrm{Orth}(X)\|_F

    Costs two QR decompositions of the long side with a singular value decomposition of
    the short side each.

    Args:
        x: Matrices ``(..., m, n)``.
        scaling: Function S from matrices to matrices, such as `linalg.scale_rows`.

    Returns:
        One number per matrix, at least float32; 0 for a zero matrix.

    Raises:
        ValueError: If ``scaling`` is not a function; if ``x`` has fewer than two axes
            or no floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix.linalg import scale_rows
        >>> x = jnp.array([[1.0, 0.0], [9.0, 9.0]])
        >>> round(float(preconditioning_bias(x, scale_rows)), 3)
        0.479

    References:
        MuonEq, Eq. 5 (second term), Figure 7 (below).
    """
    x = as_work(jnp.asarray(x))
    return matrix_norm(polar_qr(scaling(x)) - polar_qr(x))[..., 0, 0]


def _start(x: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Singular values over the Frobenius norm, and which are not rounding errors."""
    s = unit_max(singular_values(x))
    live = s > 10 * float(jnp.finfo(s.dtype).eps)  # As in `polar_svd`.
    norm = jnp.sqrt(jnp.sum(s * s, axis=-1, keepdims=True))
    return safe_divide(s, norm), live


def _mean_square_root(error: jax.Array, live: jax.Array) -> jax.Array:
    total = jnp.sum(jnp.where(live, error * error, 0), axis=-1)
    return jnp.sqrt(safe_divide(total, jnp.sum(live, axis=-1).astype(total.dtype)))


def _check_row(row: tuple[float, float, float]) -> None:
    """Raises unless the polynomial grows by at most its slope at zero on [0, 1]."""
    a, b, c = row
    vertex = -b / (2 * c) if c else 0.0
    points = [1.0, *([vertex] if 0 < vertex < 1 else [])]
    values = [a + b * t + c * t * t for t in points]
    if not (a > 1 and min(values) > 0 and max(values) <= a):
        raise ValueError(
            "`coefficients` must have a > 1 and 0 < a + b t + c t**2 <= a for t from 0 "
            f"to 1, as Theorem 3.1 demands, got the row {row}; use "
            "newton_schulz_errors, which works for all rows."
        )
