"""Restoring the norm that an update had before a transformation."""

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import checked
from optax_matrix.linalg.scale import matrix_norm, resized, widened
from optax_matrix.transforms.arguments import Transformation


@checked
def preserve_norm(inner: Transformation) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation and rescales its output to the norm of its input.

    .. math::
        \Delta \mapsto \|\Delta\|_F \, f(\Delta) / \|f(\Delta)\|_F

    for every matrix, where :math:`f` is ``inner``.

    Args:
        inner: A transformation that acts on each matrix independently.

    Returns:
        A transformation with the state of ``inner``.

    Raises:
        ValueError: If ``inner`` is not a transformation.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.transforms.preserve_norm(optax.scale_by_sign())
        >>> w = {"w": jnp.array([[3.0, -4.0]])}
        >>> print(tx.update(w, tx.init(w))[0]["w"].round(2))
        [[ 3.54 -3.54]]
    """
    inner = optax.with_extra_args_support(inner)

    def update_fn(updates, state, params=None, **extra_args):
        changed, state = inner.update(updates, state, params, **extra_args)

        def rescale(new, old):
            back = resized(widened(new), matrix_norm(old))
            return back.astype(jnp.result_type(old))

        return jax.tree.map(rescale, changed, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
