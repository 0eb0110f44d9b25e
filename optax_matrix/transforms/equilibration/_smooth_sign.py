"""Signs, of entries far below the largest smoothed."""

import jax.numpy as jnp
import optax

from optax_matrix._arguments import NotNegative, checked
from optax_matrix.linalg.scale import check_matrices, safe_divide


@checked
def smooth_sign(eps: NotNegative = 0.0) -> optax.GradientTransformationExtraArgs:
    r"""Replaces every entry by its sign, or by less if the matrix has far larger ones.

    .. math::
        X_{ij} \mapsto \frac{X_{ij}}{|X_{ij}| + \epsilon \max |X|}

    Args:
        eps: The number :math:`\epsilon`; 0 gives the signs.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``eps`` is negative.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.smooth_sign(0.5)
        >>> w = {"w": jnp.array([[4.0, -2.0, 0.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[0.667..., -0.5, 0.0]]

    References:
        The signs are those of SPlus and of Eigen-Sign; the smoothing is a deviation.
    """
    if isinstance(eps, int | float) and eps == 0:
        return optax.with_extra_args_support(optax.scale_by_sign())

    def smoothed(x, _):
        check_matrices(x)
        size = jnp.abs(x)
        peak = jnp.max(size, axis=(-2, -1), keepdims=True)
        return safe_divide(x, size + jnp.asarray(eps, x.dtype) * peak)

    return optax.with_extra_args_support(optax.stateless_with_tree_map(smoothed))
