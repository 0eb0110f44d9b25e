"""A transformation of the blocks of matrices, each block as a matrix of its own."""

from typing import Any

import jax
import optax

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix._surroundings.trees import has_shapes_of
from optax_matrix.linalg.scale import check_matrices
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.blocks import in_blocks_of, joined


@checked
def in_blocks(
    inner: Transformation, block_size: PositiveInt | None
) -> optax.GradientTransformationExtraArgs:
    """Cuts matrices into blocks that are updated as matrices of their own.

    Blocks start at the first row and column and have ``block_size`` rows and columns;
    the last ones have what remains. A matrix without a longer side stays whole. The
    Gram matrices of both sides then have two numbers per weight in square blocks; those
    of a whole matrix have m/n + n/m.

    Args:
        inner: A transformation of stacks, such as `in_eigenbasis`. In the place of a
            leaf ``(..., m, n)`` that is cut it sees a dict with at most four stacks
            ``(..., blocks, rows, cols)``. Of the arguments of `update`, parameters,
            ``gradient`` and others in the shapes of the leaves are cut, too; the rest
            are passed on as they are.
        block_size: The largest side of a block; None for whole matrices.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``block_size`` is not a positive int.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.in_blocks(om.match_rms(1.0), 2)
        >>> w = {"w": jnp.array([[3.0, 3.0, 5.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[1.0, 1.0, 1.0]]

    References:
        Anil et al., `Scalable second order optimization
        <https://arxiv.org/abs/2002.09018>`_, 2020, Section 5. Their code also merges
        small axes of a tensor before it is cut; here every leaf is matrices already.
    """
    if block_size is None:
        return optax.with_extra_args_support(inner)
    tx, size = optax.with_extra_args_support(inner), block_size

    def init_fn(params: Any) -> Any:
        jax.tree.map(check_matrices, params)
        return tx.init(in_blocks_of(size, params))

    def update_fn(updates: Any, state: Any, params: Any = None, **extra_args: Any):
        if params is not None:
            params = in_blocks_of(size, params)
        for name, x in extra_args.items():
            if has_shapes_of(x, updates):
                extra_args[name] = in_blocks_of(size, x)
        cut = in_blocks_of(size, updates)
        new, state = tx.update(cut, state, params, **extra_args)
        whole = jax.tree.map(lambda x, y: joined(size, y, x.shape), updates, new)
        return whole, state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
