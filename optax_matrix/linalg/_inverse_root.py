"""Inverse p-th roots of symmetric positive semidefinite matrices."""

import functools
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix._arguments import Exponent, checked
from optax_matrix._mesh import vary_like
from optax_matrix.linalg._derivatives import inverse_power
from optax_matrix.linalg._eigenbasis import check_square, eigenbasis
from optax_matrix.linalg.coefficients import closest_to_one
from optax_matrix.linalg.precision import pinned, roots
from optax_matrix.linalg.scale import as_work, unit_peak
from optax_matrix.linalg.spectral_norms import largest_eigenvalue

InverseRootMethod = Literal["eigh", "newton"]
# The bound on the largest eigenvalue may be a few percent too low.
_MARGIN = 1.05


@checked
def inverse_root(
    a: Float[Array, "*batch n n"],
    p: Exponent,
    *,
    eps: ArrayLike = 1e-6,
    method: InverseRootMethod = "eigh",
) -> Float[Array, "*batch n n"]:
    r"""Compute :math:`(A + \epsilon \lambda_{\max}(A)\, I)^{-1/p}`.

    ``"newton"`` is the coupled iteration

    .. math::
        M \leftarrow T^p M, \qquad X \leftarrow X T, \qquad T = a I + b M + c M^2

    started from :math:`M = zA` and :math:`X = z^{1/p} I`; M converges to the identity.
    It consists of products only. Each step has the polynomial that brings the
    eigenvalues closest to one. The first steps multiply small eigenvalues by 15
    (:math:`p = 4`); a step of Newton's method, by 2.4. All matrices need the same
    number of steps, 9 for :math:`p = 4` in float32, whatever their eigenvalues are.

    Errors measured in float32 for sides of 128 and p of 1, 2, 4 and 8, relative to the
    float64 root in the Frobenius norm: 4e-6 up to a condition number of 10; at 1e3,
    9e-6 (``"newton"``) and 4e-5 (``"eigh"``). For singular matrices they are 4e-3 and
    7e-4 with ``eps=1e-4``, since the largest eigenvalue that ``"newton"`` damps by is
    estimated, and 0.03 and 0.06 with ``eps=1e-6``, near the rounding of that
    eigenvalue.

    Args:
        a: Symmetric positive semidefinite matrices ``(..., n, n)`` of any scale;
            negative eigenvalues count as rounding errors of zero (``"newton"`` needs
            them to be small compared with the damping).
        p: The root, above zero: 4 for Shampoo, 2 for its one-sided form. ``"newton"``
            takes an int only.
        eps: Damping relative to the largest eigenvalue.
        method: ``"eigh"`` (much faster on a CPU) or ``"newton"`` (products only).

    Returns:
        Symmetric matrices of the shape of ``a``, float32 (or float64) for every input,
        as they are kept in a state. A zero matrix gives zero, as a pseudo-inverse does.

    Raises:
        ValueError: If ``p``, ``method`` or the shape is invalid, or if ``"newton"`` is
            to take a root that is no int.

    Examples:
        >>> a = jnp.diag(jnp.array([16.0, 81.0]))
        >>> inverse_root(a, 4, eps=0.0).round(3).tolist()
        [[0.5, 0.0], [0.0, 0.333...]]
        >>> inverse_root(a, 4, eps=0.0, method="newton").round(3).tolist()
        [[0.5, 0.0], [0.0, 0.333...]]

    References:
        Guo and Higham, `A Schur-Newton method for the matrix pth root
        <https://doi.org/10.1137/050643374>`_, 2006, equation (3.2), as in Anil et al.,
        `Scalable second order optimization <https://arxiv.org/abs/2002.09018>`_, 2020.
        Deviation: T is linear there, with the coefficients of Newton's iteration.
    """
    x, p = as_work(a), as_root(1 / p)
    check_square(x)
    if method == "newton":
        check_newton("p", p)
    y, peak = unit_peak(x / 2 + x.mT / 2)
    damping = jnp.asarray(eps, y.dtype)
    kernel = pinned(_by_eigh if method == "eigh" else _by_newton)
    root = inverse_power(kernel, p, y, damping)
    zero = jnp.all(y == 0, axis=(-2, -1), keepdims=True)
    return jnp.where(zero, jnp.zeros_like(root), root * peak ** (-1 / p))


def as_root(power: float) -> int | float:
    """The root p of an exponent 1/p; an int where it is one but for rounding."""
    p = 1 / power
    return round(p) if abs(p - round(p)) < 1e-9 * p else p


def check_newton(name: str, p: int | float) -> None:
    """Raises unless Newton's iteration can take a root."""
    if not isinstance(p, int):
        raise ValueError(
            f"`{name}` must be that of a root by an int with method='newton', got the "
            f"root {p:.6g}; pass method='eigh'."
        )


def _by_eigh(y: Array, eps: Array, p: int | float) -> Array:
    w, q = eigenbasis(y)
    w = jnp.maximum(w, 0.0)
    w = w + eps * w[..., :1]
    root = jnp.where(w > 0, jnp.where(w > 0, w, 1.0) ** (-1 / p), 0.0)
    return roots(q * root[..., None, :], q.mT)


def _by_newton(y: Array, eps: Array, p: int) -> Array:
    top, bound = largest_eigenvalue(y)
    eye = jnp.broadcast_to(jnp.eye(y.shape[-1], dtype=y.dtype), y.shape)
    largest = _MARGIN * (bound + eps * top)
    z = 1 / jnp.where(bound > 0, largest, 1.0)
    symmetric = lambda x: x / 2 + x.mT / 2

    def root(state: tuple[Array, ...], row: Array) -> tuple[Array, ...]:
        (m, x, inside), (a, b, c) = state, row
        t = a * eye + b * m + c * roots(m, m)
        # A negative eigenvalue that the damping does not outweigh would diverge.
        inside = inside & (jnp.max(jnp.abs(m), axis=(-2, -1), keepdims=True) < 2)
        return t, jnp.where(inside, symmetric(roots(x, t)), x), inside

    def step(state: tuple[Array, ...], row: Array) -> tuple[tuple[Array, ...], None]:
        t, x, inside = root(state, row)
        return (symmetric(roots(_power(t, p), state[0])), x, inside), None

    table = root_polynomials(p, float(jnp.finfo(y.dtype).eps))
    rows = jnp.asarray(table, y.dtype)
    start = z * (y + eps * top * eye), eye, jnp.ones_like(bound, bool)
    end, _ = jax.lax.scan(step, vary_like(start, y), rows[:-1])
    _, x, _ = root(end, rows[-1])
    return x * z ** (1 / p)


def _power(t: Array, p: int) -> Array:
    """Raise to an integer power by repeated squaring."""
    result = None
    while p:
        if p % 2:
            result = t if result is None else roots(result, t)
        p //= 2
        t = roots(t, t) if p else t
    assert result is not None
    return result


# Why these polynomials. A step multiplies an eigenvalue x of M by t(x)^p and X by T, so
# that M = X^p A stays true, and X is the root once M is the identity. In
# s = x^(1/p) a step is the polynomial s t(s^p) = a s + b s^(p+1) + c s^(2p+1). All
# eigenvalues that may occur have to arrive at one, so each step is the polynomial that
# is closest to one on the whole interval left by the steps before: its error alternates
# between four points (`closest_to_one`). Three things limit it.
#
# - On an interval from nearly zero, the closest polynomial has the largest slope at
#   zero, but takes some large eigenvalues to nearly zero as well, and these lose the
#   digits that X had of them. So the interval starts at the point from which on no
#   eigenvalue falls below `LEAST`. Smaller ones grow by the slope, a^p: 15 for p = 4,
#   where Newton's step has 2.4.
# - The polynomial is largest at the right end, where a step of x has a slope of 3.9
#   (p = 8) to 4.9 (p = 1). An eigenvalue that rounding puts above one would move away
#   five times as far in each step, so a step ends at 1 / `_SAFETY`.
# - Taylor's polynomial is last: an error e becomes one of order e^3, so it may start
#   where e is a fourth of the third root of the machine epsilon.
#
# Eigenvalues below eps / 16 of the largest are rounding, and need not arrive.

# With 0.3 as many steps are needed in all, and roots of large eigenvalues lose digits;
# 0.7 needs one more.
LEAST = 0.5
_SAFETY = 1.002

Row = tuple[float, float, float]  # (a, b, c) of a step x (a + b x + c x^2)^p.


@functools.lru_cache
def root_polynomials(p: int, eps: float) -> tuple[Row, ...]:
    r"""Rows ``(a, b, c)`` that take eigenvalues in ``[eps / 16, 1]`` to one.

    A row is a step :math:`x \mapsto x (a + b x + c x^2)^p`. In :math:`s = x^{1/p}` that
    is a polynomial with the powers 1, p + 1 and 2 p + 1. Each is the closest to one on
    the interval that the ones before leave; as long as some eigenvalues are small, that
    whose least value is `LEAST`. The last one is Taylor's polynomial.
    """
    low, high = 1e-6, 0.99
    for _ in range(50):
        middle = math.sqrt(low * high)
        least = _fit(middle, p)[1] ** p
        low, high = (middle, high) if least < LEAST else (low, middle)
    rows, l, u = [], (eps / 16) ** (1 / p), 1.0
    row, least = _fit(high, p)
    row, least = _scaled(row, 1 / _SAFETY), least / _SAFETY
    while l < high:
        rows.append(row)
        l = min(_value(row, l, p), least)
    while l < (1 - eps ** (1 / 3) / 4) * u:
        row, least = _fit(l / u, p)
        center = 2 / (1 + least)
        a, b, c = _scaled(row, center)
        rows.append((a / u, b / u ** (p + 1), c / u ** (2 * p + 1)))
        l, u = center * least, center
    linear, square = 1 / p, (p + 1) / (2 * p * p)
    rows.append((1 + linear + square, -linear - 2 * square, square))
    return tuple(rows)


def _fit(l: float, p: int) -> tuple[Row, float]:
    """The row closest to one on ``[l, 1]``, divided by its maximum, and its least."""
    row, error = closest_to_one(l, p)
    return _scaled(row, 1 / (1 + error)), (1 - error) / (1 + error)


def _scaled(row: Row, factor: float) -> Row:
    a, b, c = row
    return a * factor, b * factor, c * factor


def _value(row: Row, s: float, p: int) -> float:
    a, b, c = row
    return s * (a + b * s**p + c * s ** (2 * p))
