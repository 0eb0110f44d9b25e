"""Scaling updates to a given root mean square."""

import jax.numpy as jnp
import optax

from optax_matrix._arguments import Positive, checked
from optax_matrix.linalg.scale import resized, widened


@checked
def match_rms(target: Positive = 0.2) -> optax.GradientTransformationExtraArgs:
    r"""Scales every matrix to a given root mean square.

    .. math::
        \Delta \mapsto \rho \sqrt{m n} \, \Delta / \|\Delta\|_F

    where :math:`\rho` is ``target``. A matrix of zeros stays zero. A leaf with
    fewer than two axes is one row.

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
        y = jnp.atleast_2d(widened(x))
        size = y.shape[-2] * y.shape[-1]
        return resized(y, target * size**0.5).reshape(x.shape).astype(x.dtype)

    each = optax.stateless_with_tree_map(lambda x, _: scale(x))
    return optax.with_extra_args_support(each)
