"""Equilibration with scales computed from the current matrix alone."""

from typing import Any

import jax
import optax

from optax_matrix._arguments import Kernel, checked, unchecked
from optax_matrix._surroundings.peaks import peak_of
from optax_matrix.linalg import sinkhorn


@checked
def equilibrate(kernel: Kernel) -> optax.GradientTransformationExtraArgs:
    r"""Rescales rows or columns of every matrix with a stateless kernel.

    .. math::
        \hat{M} = D_r^{-1/2} M D_c^{-1/2}

    where the kernel computes the two diagonal matrices from :math:`M`.

    Args:
        kernel: Function from matrices ``(..., m, n)`` to matrices of the same shape:
            `scale_rows`, `scale_columns`, `scale_rows_and_columns`, `sinkhorn`,
            `standardize_rows` from `linalg`, or your own. Rows are output neurons.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``kernel`` is not callable.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.equilibrate(om.linalg.scale_rows)
        >>> w = {"w": jnp.array([[3.0, 4.0], [0.0, 10.0]])}
        >>> updates, _ = tx.update(w, tx.init(w))
        >>> updates["w"].round(3).tolist()
        [[0.6..., 0.8...], [0.0, 1.0]]
    """
    takes_peak = getattr(kernel, "func", kernel) is unchecked(sinkhorn)

    def of(x: Any) -> jax.Array:
        return kernel(x, peak=peak_of(x)) if takes_peak else kernel(x)

    each = optax.stateless_with_tree_map(lambda x, _: of(x))
    return optax.with_extra_args_support(each)
