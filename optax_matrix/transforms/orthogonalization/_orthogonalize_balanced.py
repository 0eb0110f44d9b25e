"""A polar factor whose rows have nearly equal norms (Aurora)."""

from functools import partial

import optax

from optax_matrix._arguments import Kernel, Positive, PositiveInt, checked
from optax_matrix.linalg import balanced_polar, newton_schulz
from optax_matrix.transforms.orthogonalization._orthogonalize import orthogonalize


@checked
def orthogonalize_balanced(
    polar: Kernel = newton_schulz,
    *,
    rounds: PositiveInt = 2,
    power: Positive = 0.5,
) -> optax.GradientTransformationExtraArgs:
    r"""Replaces every matrix by a polar factor whose rows have nearly equal norms.

    The rows of a tall matrix, or the columns of a wide one, are scaled before, such
    that those of the polar factor come out alike (`linalg.balanced_polar`).

    Args:
        polar: Kernel that returns the polar factor, as in `orthogonalize`.
        rounds: Number of polar factors, each from rows scaled by the last one.
        power: Exponent of that scaling.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.orthogonalize_balanced("polar_svd")
        >>> w = {"w": jnp.array([[4.0, 0.0, 0.0], [0.0, 2.0, 1.0]])}
        >>> tx.update(w, tx.init(w))[0]["w"].round(3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.7..., 0.7...]]

    References:
        Dewulf et al., `Aurora <https://arxiv.org/abs/2606.27715>`_, 2026.
    """
    balanced = partial(balanced_polar, rounds=rounds, power=power, polar=polar)
    return orthogonalize(balanced)
