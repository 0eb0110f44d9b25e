"""Scaling updates to a given root mean square."""

import optax

from optax_matrix.arguments import Positive, checked
from optax_matrix.transforms._map_matrices import map_matrices
from optax_matrix.transforms.numerics import matrix_norm, safe_divide, widened


@checked
def match_rms(target: Positive = 0.2) -> optax.GradientTransformationExtraArgs:
    r"""Scales every matrix to a given root mean square.

    .. math::
        \Delta \mapsto \rho \sqrt{m n} \, \Delta / \|\Delta\|_F

    where :math:`\rho` is ``target``. A matrix of zeros stays zero.

    Args:
        target: Root mean square of every update, above zero.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``target`` is not positive.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.match_rms(0.5)
        >>> w = {"w": jnp.array([[3.0, 0.0], [0.0, 4.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[0.6..., 0.0], [0.0, 0.8...]]
    """

    def scale(x):
        size = x.shape[-2] * x.shape[-1]
        unit = safe_divide(widened(x), matrix_norm(x))
        return (unit * (target * size**0.5)).astype(x.dtype)

    return map_matrices(scale)
