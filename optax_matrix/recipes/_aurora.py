"""Aurora: a polar factor of the momentum whose rows have nearly equal norms."""

from functools import partial
from typing import Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Positive, PositiveInt, Rate
from optax_matrix.linalg import newton_schulz
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import momentum, orthogonalize_balanced, scale_by_shape
from optax_matrix.transforms.update_size import Scaling

_TWELVE_STEPS = partial(newton_schulz, coefficients=((2.0, -1.5, 0.5),), steps=12)


@recipe
def aurora(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    nesterov: bool = True,
    rounds: PositiveInt = 2,
    power: Positive = 0.5,
    polar: Kernel | None = None,
    scaling: Scaling = "out/in",
    weight_decay: Rate = 0.025,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Aurora for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta) G_t, \quad
        \tilde{M}_t = \beta M_t + (1 - \beta) G_t, \quad
        \Delta_t = c \, \mathrm{polar}(D \tilde{M}_t)

    where D scales the rows of a tall matrix (the columns of a wide one) such that those
    of the polar factor have nearly equal norms (`linalg.balanced_polar`), and c is
    given by ``scaling``. Square matrices are treated as in `muon`. The state is one
    momentum per matrix.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.05 in the authors' code.
        b1: Decay rate :math:`\beta` of the momentum.
        nesterov: Whether to look one step ahead.
        rounds: Number of polar factors, each from rows scaled by the last one.
        power: Exponent of that scaling; less than 0.5 damps it.
        polar: Kernel that returns the polar factor; None for twelve steps of
            `linalg.newton_schulz` with the coefficients (2, -1.5, 0.5), as its authors
            have.
        scaling: Rule of `scale_by_shape`: ``"out/in"``, ``"max"``, ``"unclipped"``,
            ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.aurora(1.0, scaling="none", weight_decay=0.0)
        >>> params = {"kernel": jnp.array([[4.0, 0.0, 0.0], [0.0, 2.0, 1.0]])}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.7..., 0.7...]]

    References:
        Dewulf et al., `Aurora <https://arxiv.org/abs/2606.27715>`_, 2026, by its
        authors' code (not the Riemannian version). Deviations: there are no floors
        under the norms of rows; Newton-Schulz has the precision of `muon`'s.
    """
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        orthogonalize_balanced(
            polar or _TWELVE_STEPS,
            rounds=rounds,
            power=power,
        ),
        scale_by_shape(scaling),
    )

    return Method(chain)


scale_by_aurora = direction(aurora)
