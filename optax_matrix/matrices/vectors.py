"""Which leaves are vectors: biases, scales, scalars, and stacks of them."""

from typing import Any

from optax_matrix._paths import map_named, named_leaves
from optax_matrix.matrices._siblings import STACK_OF_VECTORS
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.leaves import leaves_in_tree


def vectors_of(params: Any) -> set[str]:
    """The paths of the leaves that are vectors, by name, shape and siblings."""
    told = leaves_in_tree(params, named_leaves(params))
    return {path for path, leaf in told.items() if is_vector(path, leaf)}


def all_but_vectors(params: Any) -> Any:
    """A mask of the leaves that recipes decay by default: all but vectors.

    Vectors are biases, scales of norms, and scalars: leaves with less than two axes,
    leaves with such a name (``attention/query/bias`` has heads and dimensions), and
    leaves ``(layers, n)`` beside kernels ``(layers, m, n)``.

    Args:
        params: The parameters of the whole model.

    Returns:
        A tree of True and False, for ``weight_decay_mask``, or ``mask`` of
        `optax.adamw`.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> all_but_vectors({"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)})
        {'bias': False, 'kernel': True}
        >>> tx = optax.adamw(1e-3, weight_decay=0.1, mask=all_but_vectors)
    """
    vectors = vectors_of(params)
    return map_named(lambda path, _: path not in vectors, params)


def is_vector(path: str, leaf: Any) -> bool:
    """Whether a leaf of `leaves_in_tree` is a vector."""
    is_stack = getattr(leaf, "other", None) == STACK_OF_VECTORS
    return len(leaf.shape) < 2 or name_of(path).is_vector or is_stack
