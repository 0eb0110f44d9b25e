r"""New rotations from old ones: by a power step, or by a step on the rotation group.

With a momentum M, a rotation R and a base optimizer f, the policies of ARO are

=========  =====================================================================
aro        ``qr(cross_gram(m, f(r.mT @ m)), previous=r)``
eigen      ``qr(cross_gram(m, r.mT @ m), previous=r)``, one power step on
           :math:`M M^\top`
polar      a polar factor of ``cross_gram(m, f(r.mT @ m))``
rgd        ``qr_retraction(r, t * project_tangent(r, cross_gram(m, f(r.mT @ m))))``
=========  =====================================================================

Methods that accumulate a statistic use :func:`power_step`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from optax_matrix.linalg._orthonormalize import Orthonormalize, qr_householder
from optax_matrix.linalg.precision import bases, project
from optax_matrix.linalg.products import Product
from optax_matrix.linalg.scale import as_work, safe_divide, unit_peak
from optax_matrix.linalg.spectral_norms import estimated_norm

_LONGEST_STEP = 1 / 8  # Of `procrustes_step`, in radians.


def cross_gram(
    x: Float[Array, "*batch m n"],
    y: Float[Array, "*batch k n"] | None = None,
    *,
    dot: Product = project,
) -> Float[Array, "*batch m k"]:
    r"""Compute :math:`X Y^\top` up to a positive factor for each matrix.

    Both are first divided by their largest entry, so that entries of 1e20 or 1e-20 stay
    in range. The scale does not affect the Q of a QR or a polar factor of the result.
    For a sum over several pairs, whose proportions matter, stack the pairs along the
    last axis.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        y: Matrices of shape ``(..., k, n)``; None for X.
        dot: Function that multiplies matrices, of ``linalg.precision``.

    Returns:
        Matrices of shape ``(..., m, k)``, float32 (or float64), with entries of at
        most ``n``.

    Examples:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1e30, 0.0], [0.0, 2e30]])
        >>> cross_gram(x).tolist()
        [[0.25, 0.0], [0.0, 1.0]]
    """
    x, _ = unit_peak(as_work(x))
    y = x if y is None else unit_peak(as_work(y))[0].astype(x.dtype)
    return dot(x, y.mT)


def power_step(
    a: Float[Array, "*batch m m"],
    basis: Float[Array, "*batch m k"],
    *,
    qr: Orthonormalize = qr_householder,
) -> Float[Array, "*batch m k"]:
    r"""Move a basis one power step towards the leading eigenvectors of a matrix.

    .. math::
        Q \leftarrow \mathrm{qr}(A Q)

    With repeated steps the columns converge to the eigenvectors, in descending order of
    the eigenvalues.

    Args:
        a: Symmetric positive semidefinite matrices ``(..., m, m)`` of any scale.
        basis: Orthonormal columns ``(..., m, k)``; where ``a`` is zero, they do not
            change.
        qr: Kernel that makes the columns orthonormal.

    Returns:
        Matrices of the shape and dtype of ``basis``.

    Examples:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[3.0, 0.0], [4.0, 5.0]])
        >>> print(power_step(a, jnp.eye(2)).round(3))
        [[ 0.6 -0.8]
         [ 0.8  0.6]]

    References:
        SOAP, Section 4. There the columns, and everything stored per column, are first
        sorted by their Rayleigh quotients.
    """
    q = as_work(basis)
    return qr(project(as_work(a).astype(q.dtype), q), previous=q).astype(basis.dtype)


def project_tangent(
    rotation: Float[Array, "*batch m k"],
    x: Float[Array, "*batch m k"],
) -> Float[Array, "*batch m k"]:
    r"""Project X onto the tangent space at R of matrices with orthonormal columns.

    .. math::
        X \mapsto X - R\, \tfrac12 (R^\top X + X^\top R)
    """
    y = as_work(x)
    r = rotation.astype(y.dtype)
    s = project(r.mT, y)
    return (y - project(r, s + s.mT) / 2).astype(x.dtype)


def qr_retraction(
    rotation: Float[Array, "*batch m k"],
    tangent: Float[Array, "*batch m k"],
    *,
    qr: Orthonormalize = qr_householder,
) -> Float[Array, "*batch m k"]:
    r"""Take a step along a tangent and make the columns orthonormal again.

    .. math::
        R \leftarrow \mathrm{qr}(R + \xi)

    equals :math:`R + \xi` to first order. Where the tangent is zero or not finite, the
    rotation does not change.
    """
    r = as_work(rotation)
    return qr(r + tangent.astype(r.dtype), previous=r).astype(rotation.dtype)


def procrustes_step(q: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """Rotate Q towards its symmetric polar factor: one step on the rotation group.

    With ``R = Q' - Q`` over its norm, ``exp(a R) Q`` has the largest trace, to second
    order, at ``a = -tr(R Q) / tr(R R Q)``. The step is at most 1/8.
    """
    skew = q.mT - q
    skew = safe_divide(skew, estimated_norm(skew, bases))
    first = bases(skew, q)
    second = bases(skew, first)
    trace = lambda x: jnp.trace(x, axis1=-2, axis2=-1)[..., None, None]
    slope, bend = trace(first), trace(second)
    best = slope / jnp.where(bend < 0, -bend, 1)
    a = jnp.where(bend < 0, jnp.clip(best, 0, _LONGEST_STEP), _LONGEST_STEP)
    return q + a * (first + a / 2 * second)
