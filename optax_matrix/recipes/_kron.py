"""PSGD Kron: Kronecker factors that whiten gradients, found by products alone."""

from typing import Literal, Unpack

import optax

from optax_matrix._arguments import (
    AtLeastOne,
    Decay,
    Dtype,
    NotNegative,
    Positive,
    PositiveInt,
    Rate,
    Seed,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import momentum, whiten


@recipe
def kron(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    bias_correction: bool = True,
    statistics: Literal["gradient", "momentum"] = "gradient",
    factor_rate: Positive = 0.1,
    bound_decay: Decay = 0.9,
    damping: NotNegative = 1e-9,
    init_scale: Positive | None = None,
    max_dim: PositiveInt | None = 8192,
    max_skew: PositiveInt | None = 1,
    max_rms: AtLeastOne | None = 2.0,
    max_entry: AtLeastOne | None = 10.0,
    update_interval: PositiveInt = 1,
    seed: Seed = 0,
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""PSGD Kron for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        X = Q_l^\top Q_l \, G_t \, Q_r^\top Q_r, \qquad
        Q_l \leftarrow \mathrm{procrustes}(
            Q_l - \tfrac{\mu}{L} (X X^\top - n I) Q_l), \qquad
        \Delta_t = Q_l^\top Q_l \, M_t \, Q_r^\top Q_r

    where :math:`M_t` is the average of the gradients and L a bound on
    :math:`\|X X^\top + n I\|`; :math:`Q_r` follows :math:`X^\top X` in the same way.
    The factors move by steps of a given size, in the way of stochastic gradient
    descent, towards those that give X unit covariance on both sides (see `whiten`).
    There is no average of Gram matrices and no root. The state is a momentum, a matrix
    of the shorter side (of both, if they are equal) and a diagonal of the longer one.
    Updates are as large as those of AdamW, or with ``statistics="momentum"`` have a
    root mean square of one.

    For a gradient of low rank, half of an update and more lies outside of its range
    after some hundred steps, whatever the damping, because whitening enlarges noise
    there to size one.

    Args:
        learning_rate: Learning rate, a number or a schedule; start with that of AdamW,
            or with a quarter of it for ``statistics="momentum"`` (and ``b1=0.9``).
        b1: Decay rate of the momentum.
        bias_correction: Whether to divide the momentum by :math:`1 - b_1^t`.
        statistics: What the factors whiten: ``"gradient"``, or ``"momentum"`` as in
            Emerging-Optimizers and psgd_jax; the author advises it where gradients are
            sparse.
        factor_rate: Step size :math:`\mu` of the factors. The author anneals it, which
            `inject_hyperparams` can do with a schedule.
        bound_decay: Decay rate of the bounds L; 0.999 helps with very sparse gradients.
        damping: Noise in X, relative to the root mean square of the gradient.
        init_scale: The root of the first P; None for that of the first gradient.
        max_dim: Longer sides have a diagonal factor; None for no bound.
        max_skew: Sides more than this number of times the other one have a diagonal
            factor; 1 for a matrix of the shorter side only, None for no bound.
        max_rms: Bound on the root mean square of an update, before the learning rate;
            None for none.
        max_entry: Bound on its entries, likewise.
        update_interval: The factors move at steps 1, K + 1, 2K + 1, ...
        seed: Seed of the noise.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.kron(1.0, weight_decay=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 3.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"]).round(3).tolist()
        [[1.27..., 0.0], [0.0, 1.27...]]

    References:
        Pooladzandi and Li, `Curvature-informed SGD via general purpose Lie-group
        preconditioners <https://arxiv.org/abs/2402.04553>`_, 2024; Li, `Stochastic
        Hessian fittings with Lie groups <https://arxiv.org/abs/2402.11858>`_, 2024;
        its author's program `psgd_torch <https://github.com/lixilinx/psgd_torch>`_,
        where this is ``KronWhiten`` with its default ``dQ="Q0.5EQ1.5"``. Deviations:
        those of `whiten`; the momentum is corrected for its bias, where that program
        averages the first gradients alike; ``b1`` and ``weight_decay`` are those of its
        examples; ``max_dim`` is that of psgd_jax and rollfast, there without bound.
        Of psgd_jax, whose factors are triangular (``dQ="EQ"``), this is another method.
    """
    whitened = whiten(
        statistics,
        side=lambda layout: sides_within(layout, "both", max_dim, max_skew=max_skew),
        factor_rate=factor_rate,
        bound_decay=bound_decay,
        damping=damping,
        init_scale=init_scale,
        max_rms=max_rms,
        update_interval=update_interval,
        momentum=momentum(b1, bias_correction=bias_correction, dtype=mu_dtype),
        seed=seed,
    )
    clip = optax.identity() if max_entry is None else optax.clip(max_entry)
    chain = optax.chain(whitened, clip)

    return Method(chain)


scale_by_kron = direction(kron)
