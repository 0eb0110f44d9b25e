"""Inverse p-th roots of symmetric positive semidefinite matrices."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._mesh import vary_like
from optax_matrix.linalg._derivatives import inverse_power
from optax_matrix.linalg._eigenbasis import check_square, eigenbasis
from optax_matrix.linalg._largest_eigenvalue import largest_eigenvalue
from optax_matrix.linalg.products import Product, full_dot
from optax_matrix.linalg.scale import as_work, unit_peak

InverseRootMethod = Literal["eigh", "newton"]
# A step of Newton's iteration multiplies a small eigenvalue by (1 + 1/p)**p, at most e.
# The first steps multiply it by the most that keeps an eigenvalue of one above this
# number, and none above one. With 0.1 and 0.03 as many steps are needed in all, and
# roots of large eigenvalues lose digits.
_LEAST = 0.3
_MAX_STEPS = 60
# As many as any matrix needed, for every root and damping that was tried.
_STEPS_ON_CUDA = {1: 30, 2: 18, 3: 18}


@checked
def inverse_root(
    a: Float[Array, "*batch n n"],
    p: PositiveInt,
    *,
    eps: ArrayLike = 1e-6,
    method: InverseRootMethod = "eigh",
    dot: Product = full_dot,
) -> Float[Array, "*batch n n"]:
    r"""Compute :math:`(A + \epsilon \lambda_{\max}(A)\, I)^{-1/p}`.

    ``"newton"`` is the coupled iteration

    .. math::
        M \leftarrow T^p M, \qquad X \leftarrow X T, \qquad T = a I - b M

    started from :math:`M = zA` and :math:`X = z^{1/p} I`; M converges to the identity.
    The last steps are Newton's, with :math:`a = (p + 1)/p` and :math:`b = 1/p`. As long
    as ``eps`` allows eigenvalues near zero, :math:`a^p` is 6.6 in place of 2.4
    (:math:`p = 4`), and no eigenvalue leaves :math:`(0, 1]`. It consists of products
    only and takes about 13 steps at most. A matrix stops when M no longer comes closer
    to the identity.

    Errors measured in float32, relative to the float64 root in the Frobenius norm, for
    p from 1 to 8: 1e-6 up to a condition number of 10, and 2e-5 at 1e3. For singular
    matrices ``"eigh"`` has 1e-3 and ``"newton"`` 5e-4 with ``eps=1e-4``; they have 0.1
    and 0.06 with ``eps=1e-6``, which is near the rounding of the largest eigenvalue.

    Args:
        a: Symmetric positive semidefinite matrices ``(..., n, n)`` of any scale;
            negative eigenvalues are taken for rounding errors of zero (``"newton"``
            needs them to be small compared with the damping).
        p: The root, a positive int: 4 for Shampoo, 2 for its one-sided form.
        eps: Damping relative to the largest eigenvalue.
        method: ``"eigh"`` (much faster on a CPU) or ``"newton"`` (products only).
        dot: Function that multiplies matrices; full precision by default.

    Returns:
        Symmetric matrices of the shape of ``a``, float32 (or float64) for every input,
        as they are kept in a state. A zero matrix gives zero, as a pseudo-inverse does.

    Raises:
        ValueError: If ``p``, ``method`` or the shape is invalid.

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
    """
    x = as_work(a)
    check_square(x)
    y, peak = unit_peak(x / 2 + x.mT / 2)
    damping = jnp.asarray(eps, y.dtype)
    kernel = partial(_by_eigh if method == "eigh" else _by_newton, dot=dot)
    root = inverse_power(kernel, int(p), y, damping)
    zero = jnp.all(y == 0, axis=(-2, -1), keepdims=True)
    return jnp.where(zero, jnp.zeros_like(root), root * peak ** (-1 / p))


def _by_eigh(y: Array, eps: Array, p: int, dot: Product) -> Array:
    w, q = eigenbasis(y)
    w = jnp.maximum(w, 0.0)
    w = w + eps * w[..., :1]
    root = jnp.where(w > 0, jnp.where(w > 0, w, 1.0) ** (-1 / p), 0.0)
    return dot(q * root[..., None, :], q.mT)


class _State(NamedTuple):
    steps: Array
    least: Array  # The smallest eigenvalue that M may have.
    m: Array
    x: Array
    error: Array
    active: Array


def _by_newton(y: Array, eps: Array, p: int, dot: Product) -> Array:
    top, bound = largest_eigenvalue(y, dot)
    eye = jnp.broadcast_to(jnp.eye(y.shape[-1], dtype=y.dtype), y.shape)
    # `bound` may be a few percent too low: M then exceeds one by as much, which both
    # kinds of steps allow.
    z = 1 / jnp.where(bound > 0, bound + eps * top, 1.0)
    m = z * (y + eps * top * eye)
    tolerance = jnp.asarray(jnp.finfo(y.dtype).eps, y.dtype)
    large, small = _first_coefficients(p)

    def unfinished(state: _State) -> Array:
        return (state.steps < _MAX_STEPS) & jnp.any(state.active)

    def step(state: _State) -> _State:
        first = state.least * large**p < 1
        a = jnp.where(first, large, (p + 1) / p).astype(y.dtype)
        b = jnp.where(first, small, 1 / p).astype(y.dtype)
        t = a * eye - b * state.m
        m, x = dot(_power(t, p, dot), state.m), dot(state.x, t)
        m, x = (m + m.mT) / 2, (x + x.mT) / 2
        error = jnp.max(jnp.abs(m - eye), axis=(-2, -1))
        # The error does not change while an eigenvalue is below the rounding of one,
        # and the first steps may increase it.
        near = ~first & (error <= 0.5)
        better = state.active & (error < jnp.where(near, state.error, 2.0))
        return _State(
            steps=state.steps + 1,
            least=jnp.where(first, state.least * large**p, state.least),
            m=m,
            x=jnp.where(better[..., None, None], x, state.x),
            error=jnp.where(better, error, state.error),
            active=better & (first | (error > tolerance)),
        )

    error = jnp.max(jnp.abs(m - eye), axis=(-2, -1))
    steps, least = jnp.zeros((), jnp.int32), jnp.maximum(eps, tolerance)
    start = _State(steps, least, m, eye, error, error > tolerance)
    start = vary_like(start, m)
    fixed = _STEPS_ON_CUDA.get(p, 15)
    # On CUDA the host would have to wait for each step, to decide on the next.
    end = jax.lax.platform_dependent(
        start,
        cuda=lambda s: jax.lax.fori_loop(0, fixed, lambda _, s: step(s), s),
        default=lambda s: jax.lax.while_loop(unfinished, step, s),
    )
    return end.x * z ** (1 / p)


def _first_coefficients(p: int) -> tuple[float, float]:
    """The largest a with ``_LEAST <= x (a - b x)**p`` at x = 1, and at most 1 below.

    With ``b = (1 - d) a`` the maximum is one for ``a**p = c (1 - d)``, and the value at
    x = 1 is ``c (1 - d) d**p``, which increases up to ``d = p / (p + 1)``.
    """
    c = (p + 1) ** (p + 1) / p**p
    low, high = 0.0, p / (p + 1)
    for _ in range(60):
        d = (low + high) / 2
        low, high = (d, high) if c * (1 - d) * d**p < _LEAST else (low, d)
    a = (c * (1 - high)) ** (1 / p)
    return a, (1 - high) * a


def _power(t: Array, p: int, dot: Product) -> Array:
    """Raise to an integer power by repeated squaring."""
    result = None
    while p:
        if p % 2:
            result = t if result is None else dot(result, t)
        p //= 2
        t = dot(t, t) if p else t
    assert result is not None
    return result
