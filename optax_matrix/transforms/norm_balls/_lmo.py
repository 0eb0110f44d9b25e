"""Linear minimization oracles over balls of norms of matrices."""

from functools import partial
from typing import Literal

import optax

from optax_matrix._arguments import Kernel, Positive, checked
from optax_matrix.linalg import newton_schulz, scale_columns, scale_rows
from optax_matrix.transforms.equilibration import equilibrate
from optax_matrix.transforms.orthogonalization import orthogonalize
from optax_matrix.transforms.update_size import scale_by_shape

BallNorm = Literal["spectral", "row", "column", "sign"]
EndNorm = Literal["row", "column", "sign"]
_SIZES = {
    "spectral": lambda m, n: (m / n) ** 0.5,
    "row": lambda m, n: n**-0.5,  # noqa: ARG005
    "column": lambda m, n: m**0.5 / n,
    "sign": lambda m, n: 1 / n,  # noqa: ARG005
}


@checked
def lmo(
    norm: BallNorm,
    radius: Positive = 1.0,
    *,
    one_hot: bool = False,
    polar: Kernel = newton_schulz,
) -> optax.GradientTransformationExtraArgs:
    r"""The direction of steepest ascent under a norm, of length ``radius`` in it.

    .. math::
        \Delta = \arg\max_{\|D\| \le \rho} \langle M, D \rangle

    For a matrix with m rows (outputs), n columns (inputs) and the singular value
    decomposition :math:`M = U S V^\top`:

    * ``"spectral"``: :math:`\rho \sqrt{m/n} \, U V^\top`
    * ``"row"``: rows :math:`\rho \, M_i / (\sqrt n \, \|M_i\|)`
    * ``"column"``: columns :math:`\rho \sqrt m \, M_j / (n \, \|M_j\|)`
    * ``"sign"``: :math:`\rho \, \mathrm{sign}(M) / n`

    These sizes are for inputs whose root mean square is one. A one-hot input, that of
    an embedding, counts as n = 1. Rows, columns and entries of zeros stay zero.

    Args:
        norm: One of these names.
        radius: The radius :math:`\rho`.
        one_hot: Whether inputs are one-hot.
        polar: Kernel that returns the polar factor, for ``"spectral"``.

    Returns:
        A stateless transformation of trees whose leaves are ``(..., m, n)``. The sign
        of the linear minimization oracle comes with the learning rate.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx, m = om.transforms.lmo("sign", 3.0), jnp.array([[2.0, 0.0, -5.0]])
        >>> tx.update(m, tx.init(m))[0].tolist()
        [[1.0, 0.0, -1.0]]

    References:
        Pethick et al., `Scion <https://arxiv.org/abs/2502.07529>`_, 2025, by its
        authors' `code <https://github.com/LIONS-EPFL/scion>`_. Deviation: no epsilon is
        added to norms.
    """
    kernel = {
        "spectral": lambda: orthogonalize(polar),
        "row": lambda: equilibrate(partial(scale_rows, eps=0.0)),
        "column": lambda: equilibrate(partial(scale_columns, eps=0.0)),
        "sign": optax.scale_by_sign,
    }[norm]()
    size = lambda m, n: radius * _SIZES[norm](m, 1 if one_hot else n)
    return optax.chain(kernel, scale_by_shape(size))
