"""GaLore: Adam in a subspace of the gradient."""

from typing import Unpack

import optax

from optax_matrix._arguments import (
    Decay,
    Dtype,
    Kernel,
    NotNegative,
    Positive,
    PositiveInt,
    Rank,
    Rate,
    Seed,
)
from optax_matrix.recipes._low_rank import (
    LastLayer,
    SingularBasis,
    Transport,
    coordinate_adam,
    singular_basis,
    with_last_layer,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import back_project, project_low_rank
from optax_matrix.transforms.low_rank import as_combining
from optax_matrix.transforms.sides import ProjectedSide


@recipe
def galore(
    learning_rate: Rate,
    *,
    rank: Rank = 128,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 0.0,
    scale: Positive = 0.25,
    update_interval: PositiveInt = 200,
    renew_below: Positive | None = None,
    basis: SingularBasis = "randomized_svd",
    side: ProjectedSide = "short",
    transport: Transport = "keep",
    bias_correction: bool = True,
    stagger: bool = False,
    seed: Seed = 0,
    qr: Kernel = "cholesky_qr",
    last_layer: LastLayer = "other",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""GaLore for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        \sigma_t = U^\top G_t, \qquad
        \Delta_t = \alpha \, U \, \mathrm{Adam}(\sigma_t)

    where U holds the leading left singular vectors of a recent gradient. The state is
    ``2 n r + m r + 2`` numbers per matrix with ``m <= n`` (two less without bias
    correction).

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the paper, 0.02
            (with a scale of 0.3) in that of Alice.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 256, 256, 512 in the paper for 60M, 130M, 350M, 1B.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        eps: Added to its root (`scale_by_second_moment`); 1e-6 in the authors' code.
        scale: Factor :math:`\alpha` of the update.
        update_interval: U is renewed at steps 1, K + 1, 2K + 1, ...
        renew_below: Norm of :math:`U^\top G` at or below which U is renewed besides
            (`project_low_rank`, the criterion of `sumo`); None for no such renewals.
        basis: ``"randomized_svd"``; ``"svd"`` for exact vectors (the paper); or a
            function, see `transforms.given_basis`.
        side: Which side is projected, as in `project_low_rank`.
        transport: What happens to the moments at a renewal, as in `project_low_rank`.
        bias_correction: Whether to correct both moments, as Adam does.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Seed of the random numbers.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        last_layer: ``"method"`` treats an output head, recognized by its name, as a
            matrix; ``"other"`` leaves it to Adam, as in the paper.
        weight_decay: Decoupled weight decay of all but vectors; none in the paper.
        mu_dtype: Dtype of the momenta; None for float32.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.galore(1.0, rank=1, scale=1.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        Zhao et al., `GaLore <https://arxiv.org/abs/2403.03507>`_, 2024, Algorithm 2;
        renewals as in the authors' code, which projects the columns of square matrices
        (the paper and this recipe project the rows). Deviations: singular vectors come
        from a randomized range finder; no epsilon by default; coordinates that are
        rounding noise count as zero (`project_low_rank`); weight decay applies to the
        old weights, in that code to the new ones, ``learning_rate * weight_decay`` of
        an update less; ratios beyond Adam's largest are reduced
        (`scale_by_second_moment`).
    """
    chain = project_low_rank(
        coordinate_adam(b1, b2, bias_correction, mu_dtype, eps),
        combine=optax.chain(as_combining(back_project), optax.scale(scale)),
        rank=rank,
        side=side,
        basis=singular_basis(basis, qr),
        update_interval=update_interval,
        phase=0,
        renew_below=renew_below,
        stagger=stagger,
        transport=transport,
        seed=seed,
    )

    numbers = with_last_layer(last_layer, common)
    return Method(chain, dimension_numbers=numbers, other_b2=0.999)


scale_by_galore = direction(galore)
