"""Updates with the norm of what came in."""

import jax
import jax.numpy as jnp
import optax

from optax_matrix.arguments import checked
from optax_matrix.transforms._arguments import Transformation
from optax_matrix.transforms.numerics import matrix_norm, safe_divide, widened


@checked
def preserve_norm(
    inner: Transformation,
) -> optax.GradientTransformationExtraArgs:
    r"""Gives what a transformation returns the Frobenius norm of what it got.

    .. math::
        \Delta \mapsto \|\Delta\|_F \, f(\Delta) / \|f(\Delta)\|_F

    matrix by matrix, with :math:`f` the ``inner`` transformation.

    Args:
        inner: A transformation that acts on each matrix by itself.

    Returns:
        A transformation with the state of ``inner``.

    Raises:
        ValueError: If ``inner`` is no transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.preserve_norm(optax.scale_by_sign())
        >>> w = {"w": jnp.array([[3.0, -4.0]])}
        >>> print(tx.update(w, tx.init(w))[0]["w"].round(2))
        [[ 3.54 -3.54]]
    """
    inner = optax.with_extra_args_support(inner)

    def update_fn(updates, state, params=None, **extra_args):
        changed, state = inner.update(updates, state, params, **extra_args)

        def rescale(new, old):
            unit = safe_divide(widened(new), matrix_norm(new))
            return (unit * matrix_norm(old)).astype(jnp.result_type(old))

        return jax.tree.map(rescale, changed, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
