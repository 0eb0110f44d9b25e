"""A power of every entry, with the norm kept."""

import jax.numpy as jnp
import optax

from optax_matrix._arguments import Positive, checked
from optax_matrix.linalg.scale import unit_peak, widened
from optax_matrix.transforms.update_size import preserve_norm


@checked
def compress_entries(power: Positive = 0.5) -> optax.GradientTransformationExtraArgs:
    r"""Takes a power of the size of every entry, and restores the norm of the matrix.

    .. math::
        X_{ij} \mapsto c \, \mathrm{sign}(X_{ij}) |X_{ij}|^p

    Between the sign (:math:`p \to 0`) and no change (:math:`p = 1`).

    Args:
        power: The exponent p.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``.

    Raises:
        ValueError: If ``power`` is not positive.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.transforms.compress_entries(0.5)
        >>> w = {"w": jnp.array([[16.0, -1.0]])}
        >>> x = tx.update(w, tx.init(w))[0]["w"]
        >>> (x / x[0, 1]).round(3).tolist()
        [[-4.0, 1.0]]

    References:
        Vyas et al., `SOAP-Muon <https://github.com/nikhilvyas/SOAP_MUON>`_, 2024,
        Section 2.1.
    """

    def compressed(x):
        y, _ = unit_peak(widened(x))
        return (jnp.sign(y) * jnp.abs(y) ** power).astype(x.dtype)

    return preserve_norm(optax.stateless_with_tree_map(lambda x, _: compressed(x)))
