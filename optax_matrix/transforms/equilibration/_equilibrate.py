"""Equilibration by a function of the present matrix alone."""

import optax

from optax_matrix.arguments import Kernel, checked
from optax_matrix.transforms._map_matrices import map_matrices


@checked
def equilibrate(
    kernel: Kernel,
) -> optax.GradientTransformationExtraArgs:
    r"""Rescales rows or columns of every matrix by a stateless kernel.

    .. math::
        \hat{M} = D_r^{-1/2} M D_c^{-1/2}

    where the kernel decides how the two diagonal matrices follow from :math:`M`.

    Args:
        kernel: Function of matrices ``(..., m, n)``: `scale_rows`, `scale_columns`,
            `scale_rows_and_columns`, `sinkhorn`, `standardize_rows` from `linalg`, or
            any function of that shape. Rows are output neurons.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``kernel`` cannot be called.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.equilibrate(om.linalg.scale_rows)
        >>> w = {"w": jnp.array([[3.0, 4.0], [0.0, 10.0]])}
        >>> updates, _ = tx.update(w, tx.init(w))
        >>> updates["w"].round(3).tolist()
        [[0.6..., 0.8...], [0.0, 1.0]]
    """
    return map_matrices(kernel)
