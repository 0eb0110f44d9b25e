"""SWAN: standardize the rows of the gradient, then whiten it."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Dtype, Kernel, NotNegative, Rate
from optax_matrix.linalg import standardize_rows
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import (
    equilibrate,
    orthogonalize,
    preserve_norm,
    scale_by_shape,
)
from optax_matrix.transforms.update_size import Scaling


@recipe
def swan(
    learning_rate: Rate,
    *,
    eps: NotNegative = 1e-8,
    polar: Kernel = "newton_schulz",
    scaling: Literal["norm"] | Scaling = "max",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""SWAN for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        \tilde{G}_i = (G_i - \bar{G}_i) / \mathrm{std}(G_i), \qquad
        \Delta = c \, (\tilde{G} \tilde{G}^\top)^{-1/2} \tilde{G}

    Rows are standardized, and whitening gives the polar factor. By default, c is
    :math:`0.2 \sqrt{\max(m, n)}`, and no singular value exceeds 1.21 c. Without state.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02, where the study
            begins. SWAN's own updates have another size.
        eps: Floor of a row's variance, relative to the mean square of the matrix.
        polar: Kernel that returns the polar factor.
        scaling: Rule of `scale_by_shape`, ``"none"`` for Equation 32, a number, a
            function of ``(rows, cols)`` or `target_rms`; or ``"norm"`` for the
            Frobenius norm of :math:`\tilde{G}`, which SWAN's own paper offers.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the other leaves' first moment; None: the parameter's.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.swan(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> float(abs(updates["kernel"]).max())  # Equal entries have no variance.
        0.0

    References:
        Ma et al., `SWAN <https://arxiv.org/abs/2412.13148>`_, 2024; Structured Fisher,
        Equations 30 to 32. Deviations: Muon's Newton-Schulz coefficients by default;
        the update has the root mean square of Adam's, so that one learning rate serves
        all leaves (``scaling``); ``eps`` is relative; rows that are constant up to
        rounding become zero; Newton-Schulz has the precision of `muon`'s.
    """
    whiten = orthogonalize(polar)
    chain = optax.chain(
        equilibrate(partial(standardize_rows, eps=eps)),
        preserve_norm(whiten) if scaling == "norm" else whiten,
        scale_by_shape("none" if scaling == "norm" else scaling),
    )

    return Method(chain, other_b2=0.999)


scale_by_swan = direction(swan, without=["mu_dtype"])
