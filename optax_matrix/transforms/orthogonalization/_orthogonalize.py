"""Replacing every matrix by its polar factor."""

import functools
from typing import Any

import optax

from optax_matrix._arguments import KERNELS, Kernel, checked
from optax_matrix._surroundings.kernels import on_real_matrices
from optax_matrix._surroundings.observation import report
from optax_matrix.linalg import balanced_polar, newton_schulz


@checked
def orthogonalize(
    polar: Kernel = newton_schulz,
) -> optax.GradientTransformationExtraArgs:
    r"""Replaces every matrix by its polar factor.

    .. math::
        U \Sigma V^\top \mapsto U V^\top

    exactly or approximately, depending on the kernel.

    Args:
        polar: Function of matrices ``(..., m, n)``, such as `newton_schulz`,
            `polar_svd`, or ``functools.partial(newton_schulz, steps=7)``.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``polar`` is not a function from matrices to such matrices.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.orthogonalize(om.linalg.polar_svd)
        >>> w = {"w": jnp.array([[0.0, 5.0], [3.0, 0.0]])}
        >>> updates, _ = tx.update(w, tx.init(w))
        >>> abs(updates["w"].round(3)).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """

    def update_fn(updates, params):
        del params
        report("polar_input", updates)
        return on_real_matrices(polar, updates, transposable=_is_polar(polar))

    return optax.with_extra_args_support(optax.stateless(update_fn))


def _is_polar(kernel: Any) -> bool:
    """Whether this is a kernel of `linalg`, for which the orientation is all the same.

    A function of a user's own may look at rows and columns.
    """
    while isinstance(kernel, functools.partial):
        balanced = kernel.func is balanced_polar and "polar" in kernel.keywords
        kernel = kernel.keywords["polar"] if balanced else kernel.func
    return any(kernel is known for known in KERNELS["polar"].values())
