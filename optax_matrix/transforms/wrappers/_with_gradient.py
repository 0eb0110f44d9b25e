"""Passing the gradient along to the later links of a chain."""

import optax

from optax_matrix._arguments import checked
from optax_matrix.transforms.arguments import Transformation


@checked
def with_gradient(inner: Transformation) -> optax.GradientTransformationExtraArgs:
    """Runs a transformation with its own input as the argument ``gradient``.

    In a chain, `scale_by_second_moment` then squares the gradient, and not the momentum
    that it divides. Likewise the statistics of `in_eigenbasis`, `precondition` and
    `whiten` are those of the gradient. Blocks with an inner transformation hand the
    gradient on in the frame of that: `rotate` and `in_eigenbasis` turned,
    `precondition` whitened, `project_low_rank` projected, `in_blocks` cut, `per_matrix`
    matrix by matrix. `spo` refuses it. All other blocks, such as
    `equilibrate_with_ema`, do not use it.

    It goes inside of `on_matrices`, which refuses it around a chain; around a recipe,
    which is complete, it has no effect on matrices.

    Args:
        inner: A transformation of stacks, such as a chain.

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

        Conda: Adam in the singular vectors of the momentum, with the squares of the
        gradient there:

        >>> adam = om.scale_by_second_moment(0.99, bias_correction=True, eps=1e-8)
        >>> frame = om.rotate(adam, policy="eigen_exact", update_interval=2000)
        >>> chain = optax.chain(om.momentum(0.9, bias_correction=True), frame)
        >>> tx = om.transforms.with_gradient(chain)

    References:
        `Conda <https://arxiv.org/abs/2509.24218>`_, 2025, is the chain above.
    """
    inner = optax.with_extra_args_support(inner)

    def update_fn(updates, state, params=None, **extra_args):
        extra_args["gradient"] = updates
        return inner.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
