"""Derivatives of kernels whose loops and decompositions JAX cannot differentiate.

All kernels of a class compute the same function of a matrix, so they share one formula
for its derivative. A forward call costs as much as the kernel.

Where a kernel is not differentiable, the formulas leave a part out and stay finite:
columns that depend linearly on earlier ones count as constants, singular values that
the kernel cuts off stay cut off, and vectors of equal eigenvalues do not mix.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg._block_jacobi import eigh
from optax_matrix.linalg._triangular import inverse_lower
from optax_matrix.linalg.lapack import svd
from optax_matrix.linalg.products import along, full_dot
from optax_matrix.linalg.scale import as_work, inverse, is_usable, unit_peak


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def q_factor(
    compute: Callable[..., Array], x: Array, previous: Array | None, *others: Any
) -> Array:
    """The Q that ``compute(x, previous, *others)`` returns, with its derivative."""
    return compute(x, previous, *others)


@q_factor.defjvp
def _q_factor_jvp(compute, primals, tangents):
    x, previous, *others = primals
    out = q_factor(compute, x, previous, *others)
    q, (y, peak) = as_work(out), unit_peak(as_work(x))
    # Q does not depend on the length of the columns: of norm one, R is well scaled.
    size = inverse(jnp.sqrt(jnp.sum(y * y, axis=-2, keepdims=True)))
    y, dy = y * size, tangents[0].astype(y.dtype) * (size / peak)
    r = jnp.triu(full_dot(q.mT, y))
    least = 8 * float(jnp.finfo(y.dtype).eps) * y.shape[-2] ** 0.5
    # A column without a part of its own in R is arbitrary: it counts as a constant.
    live = jnp.abs(jnp.diagonal(r, axis1=-2, axis2=-1))[..., None, :] > least
    eye = jnp.broadcast_to(jnp.eye(r.shape[-1], dtype=r.dtype), r.shape)
    inverse_r = inverse_lower(jnp.where(live, r, eye).mT).mT

    def of(dy: Array) -> Array:
        # dX R^-1 = dQ + Q dR R^-1, where Q'dQ is skew and dR R^-1 upper triangular: so
        # the part of Q'dX R^-1 below the diagonal is that of Q'dQ.
        z = full_dot(jnp.where(live, dy, 0), inverse_r)
        a = full_dot(q.mT, z)
        below = jnp.tril(a, -1)
        return full_dot(q, below - below.mT - a) + z

    dq = along(of, y, dy)
    if previous is not None:
        dq = jnp.where(is_usable(y), dq, tangents[1].astype(dq.dtype))
    return out, dq.astype(out.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def polar_factor(compute: Callable[..., Array], rtol: float, x: Array) -> Array:
    """The compact polar factor ``compute(x, rtol)``, with its derivative."""
    return compute(x, rtol)


@polar_factor.defjvp
def _polar_factor_jvp(compute, rtol, primals, tangents):
    (x,), (dx,) = primals, tangents
    out = polar_factor(compute, rtol, x)
    tall = x.shape[-2] > x.shape[-1]
    u, s, vt = svd(x.mT if tall else x)
    kept = s > rtol * jnp.max(s, axis=-1, keepdims=True)
    left, right = s[..., :, None], s[..., None, :]
    large, small = jnp.maximum(left, right), jnp.minimum(left, right)
    both = kept[..., :, None] & kept[..., None, :]
    mixed = kept[..., :, None] ^ kept[..., None, :]

    def of(dx: Array) -> Array:
        udx = full_dot(u.mT, dx.mT if tall else dx)
        a = full_dot(udx, vt.mT)
        # Between kept values only the skew part counts, over their sum, which is safe
        # for equal ones. A kept and a cut value mix over the difference of squares; two
        # cut ones contribute nothing.
        b = jnp.where(both, (a - a.mT) * inverse(large + small), 0)
        between = (large * a + small * a.mT) * inverse(large**2 - small**2)
        b = jnp.where(mixed, between, b)
        rest = (kept * inverse(s))[..., :, None] * (udx - full_dot(a, vt))
        d = full_dot(u, full_dot(b, vt) + rest)
        return d.mT if tall else d

    return out, along(of, x, dx)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def singular_vectors(compute: Callable[[Array], Any], x: Array) -> Array:
    """The left singular vectors, with their derivative.

    ``compute`` returns U, s and V'.
    """
    return compute(x)[0]


@singular_vectors.defjvp
def _singular_vectors_jvp(compute, primals, tangents):
    (x,), (dx,) = primals, tangents
    u, s, vt = compute(x)
    left, right = s[..., :, None], s[..., None, :]
    # (r - l)(r + l) and not r**2 - l**2, which cancels for neighbors.
    gaps = _inverse_gaps((right - left) * (right + left))

    def of(dx: Array) -> Array:
        dxv = full_dot(dx, vt.mT)
        a = full_dot(u.mT, dxv)
        inside = gaps * (a * right + left * a.mT)
        outside = (dxv - full_dot(u, a)) * inverse(right)
        return full_dot(u, inside) + outside

    return u, along(of, x, dx)


@jax.custom_jvp
def eigenvectors(x: Array) -> tuple[Array, Array]:
    """`eigh`, with its derivative."""
    return eigh(x)


@eigenvectors.defjvp
def _eigenvectors_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    w, q = eigenvectors(x)
    gaps = _inverse_gaps(w[..., None, :] - w[..., :, None])

    def of(dx: Array) -> tuple[Array, Array]:
        a = full_dot(q.mT, full_dot(dx / 2 + dx.mT / 2, q))
        return jnp.diagonal(a, axis1=-2, axis2=-1), full_dot(q, gaps * a)

    return (w, q), along(of, x, dx)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def inverse_power(
    compute: Callable[..., Array], p: int | float, x: Array, eps: Array
) -> Array:
    r"""The root :math:`(X + \epsilon \lambda_{\max} I)^{-1/p}`, with its derivative."""
    return compute(x, eps, p)


@inverse_power.defjvp
def _inverse_power_jvp(compute, p, primals, tangents):
    x, eps = primals
    out = inverse_power(compute, p, x, eps)
    w, q = eigenvectors(x)
    w, top = jnp.maximum(w, 0), w[..., -1:]
    eye = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    slope = _slopes(w + eps * jnp.maximum(top, 0), p)

    def of(tangents: Any) -> Array:
        dx, deps = tangents
        a = full_dot(q.mT, full_dot(dx / 2 + dx.mT / 2, q))
        a = a + (deps * top + eps * a[..., -1, -1:])[..., None] * eye
        return full_dot(full_dot(q, slope * a), q.mT)

    return out, along(of, primals, tangents)


def _slopes(w: Array, p: int | float) -> Array:
    """Divided differences of w**(-1/p), without cancellation."""
    if isinstance(p, int):
        root = w ** (1 / p)
        left, right = root[..., :, None], root[..., None, :]
        powers = [left**k * right ** (p - 1 - k) for k in range(p)]
        return -inverse(left) * inverse(right) * inverse(sum(powers[1:], powers[0]))
    left, right = w[..., :, None], w[..., None, :]
    small = jnp.minimum(left, right)
    gap = jnp.abs(left - right) * inverse(small)
    same = gap == 0
    ratio = jnp.expm1(-jnp.log1p(gap) / p) * inverse(gap)
    power = jnp.where(small > 0, jnp.where(small > 0, small, 1) ** (-1 / p - 1), 0)
    return jnp.where(same, -1 / p, ratio) * power


def _inverse_gaps(gaps: Array) -> Array:
    """Reciprocals of differences of values; zero for those that are equal."""
    largest = jnp.max(jnp.abs(gaps), axis=(-2, -1), keepdims=True)
    least = 8 * float(jnp.finfo(gaps.dtype).eps) * largest
    return jnp.where(jnp.abs(gaps) > least, inverse(gaps), 0)
