"""Passing the gradient along to the later links of a chain."""

import optax

from optax_matrix._arguments import checked
from optax_matrix.transforms.arguments import Transformation


@checked
def with_gradient(inner: Transformation) -> optax.GradientTransformationExtraArgs:
    """Runs a transformation with its own input as the argument ``gradient``.

    In a chain, `scale_by_second_moment` then squares the gradient, and not the momentum
    that it divides.

    Args:
        inner: A transformation, such as a chain.

    Returns:
        A transformation with the state of ``inner``.

    Raises:
        ValueError: If ``inner`` is not a transformation.

    Examples:
        Adam without bias corrections:

        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> moments = om.momentum(0.5), om.scale_by_second_moment(0.75)
        >>> tx = om.transforms.with_gradient(optax.chain(*moments))
        >>> w = {"w": jnp.array([[3.0, -4.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].tolist()
        [[1.0, -1.0]]
    """
    inner = optax.with_extra_args_support(inner)

    def update_fn(updates, state, params=None, **extra_args):
        extra_args["gradient"] = updates
        return inner.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
