"""A matrix with orthonormal columns whose rows have nearly equal norms (Aurora)."""

from collections.abc import Callable

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from optax_matrix.linalg._newton_schulz import newton_schulz
from optax_matrix.linalg.scale import inverse, safe_root, wide_unit_peak


def balanced_polar(
    x: Float[Array, "*batch m n"],
    *,
    rounds: int = 2,
    power: ArrayLike = 0.5,
    polar: Callable[[Array], Array] = newton_schulz,
) -> Float[Array, "*batch m n"]:
    r"""Scale the rows of a tall matrix so that those of its polar factor are alike.

    .. math::
        D_1 = \mathrm{diag}(\|X_i\|)^{-1}, \quad U_k = \mathrm{polar}(D_k X), \quad
        D_{k+1} = D_k \, \mathrm{diag}(n / (m \|U_{k,i}\|^2))^{p}

    For more columns than rows the same is done with the columns. The polar factor of a
    square matrix has equal norms already, and is returned.

    Args:
        x: Matrices of shape ``(..., m, n)``.
        rounds: Number of polar factors; the last one is returned.
        power: The exponent p; less than 0.5 damps the steps.
        polar: Function that returns the polar factor.

    Returns:
        Matrices ``(..., m, n)``. Rows of zeros stay zero.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix.linalg import balanced_polar, polar_svd
        >>> x = jnp.array([[4.0, 0.0], [0.0, 2.0], [0.0, 1.0], [0.0, 1.0]])
        >>> jnp.linalg.norm(polar_svd(x), axis=1).round(2).tolist()
        [1.0, 0.81..., 0.40..., 0.40...]
        >>> jnp.linalg.norm(balanced_polar(x, polar=polar_svd), axis=1).round(
        ...     2
        ... ).tolist()
        [1.0, 0.57..., 0.57..., 0.57...]

    References:
        Dewulf et al., `Aurora <https://arxiv.org/abs/2606.27715>`_, 2026, by its
        authors' code.
    """
    dtype = x.dtype
    if x.shape[-2] == x.shape[-1]:
        return polar(x)
    y, transposed = wide_unit_peak(x)  # Wide: the columns are the rows of above.
    y = y * inverse(safe_root(jnp.sum(y * y, axis=-2, keepdims=True)))
    scale = jnp.ones_like(y[..., :1, :])
    for k in range(rounds):
        u = polar(y * scale)
        if k + 1 < rounds:
            squared = jnp.sum(u * u, axis=-2, keepdims=True)
            target = y.shape[-2] / y.shape[-1]
            scale = scale * (target * inverse(squared)) ** power
    return (u.mT if transposed else u).astype(dtype)
