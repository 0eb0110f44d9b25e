"""SinkGD: scale the rows and columns of the gradient in turn."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Dtype, PositiveInt, Rate
from optax_matrix.linalg import sinkhorn
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import equilibrate
from optax_matrix.transforms.update_size import Scaling, scaled


@recipe
def sinkgd(
    learning_rate: Rate,
    *,
    rounds: PositiveInt = 5,
    scheme: Literal["alternating", "simultaneous", "ruiz"] = "alternating",
    scaling: Literal["rms"] | Scaling = "rms",
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""SinkGD for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    Each round scales the rows to norm :math:`\sqrt n`, then the columns to norm
    :math:`\sqrt m`. After the last one the whole matrix is scaled to a root mean square
    of 0.2. The matrices have no state.

    Args:
        learning_rate: Learning rate, a number or a schedule; start at 3e-3, as with
            `muoneq`. The paper's updates have another size.
        rounds: Number of rounds.
        scheme: ``"alternating"`` (SinkGD), ``"simultaneous"`` (the variant in ARO's
            paper) or ``"ruiz"``, as in `linalg.sinkhorn`.
        scaling: ``"rms"`` scales the update to a root mean square of 0.2, the usual
            size of Adam's, and `target_rms` to another; or a rule of `scale_by_shape`,
            a number or a function of ``(rows, cols)`` for a factor in its place.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the first moment of the other leaves; None for that of the
            parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.sinkgd(1.0, scaling=om.target_rms(1.0), weight_decay=0.0)
        >>> params = {"kernel": jnp.array([[1.0, 2.0], [3.0, 6.0]])}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]

    References:
        Scetbon et al., `Gradient multi-normalization
        <https://arxiv.org/abs/2502.06742>`_, 2025. Deviation: the update is scaled to
        the root mean square of Adam's, by ARO's rule.
    """
    kernel = partial(sinkhorn, rounds=rounds, scheme=scheme)
    chain = optax.chain(equilibrate(kernel), scaled(scaling))

    return Method(chain)


scale_by_sinkgd = direction(sinkgd, without=["mu_dtype"])
