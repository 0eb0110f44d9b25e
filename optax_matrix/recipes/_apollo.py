"""APOLLO: the gradient, scaled by the Adam of a projection of it."""

from typing import Literal, Unpack

from optax_matrix._arguments import (
    AtLeastOne,
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
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._low_rank import (
    LastLayer,
    SingularBasis,
    Transport,
    coordinate_adam,
    singular_basis,
    with_last_layer,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, preset, recipe
from optax_matrix.transforms import project_low_rank, scale_gradient
from optax_matrix.transforms.low_rank import gaussian_basis
from optax_matrix.transforms.sides import ProjectedSide

GivenBasis = Literal["gaussian"] | Kernel


@recipe
def _apollo(
    learning_rate: Rate,
    *,
    rank: Rank = 256,
    norm: Literal["channel", "tensor"] = "channel",
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 0.0,
    scale: Positive = 1.0,
    limiter: AtLeastOne | None = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    update_interval: PositiveInt = 200,
    basis: GivenBasis | SingularBasis = "gaussian",
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
    r"""APOLLO, by channel or by tensor, with any of three bases."""
    drawn = gaussian_basis()
    if basis != "gaussian":
        drawn = singular_basis(basis, qr)
    chain = project_low_rank(
        coordinate_adam(b1, b2, bias_correction, mu_dtype, eps),
        combine=scale_gradient(
            norm, scale=scale, limiter=limiter, max_shrink=max_shrink
        ),
        rank=rank,
        side=side,
        basis=drawn,
        update_interval=update_interval,
        phase=0,
        stagger=stagger,
        transport=transport,
        seed=seed,
    )

    numbers = with_last_layer(last_layer, common)
    return Method(chain, dimension_numbers=numbers, other_b2=0.999, stops=True)


@preset(
    _apollo,
    fixed={"norm": "channel", "transport": "keep", "qr": cholesky_qr},
    types={"basis": GivenBasis},
)
def apollo():
    r"""APOLLO for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        \sigma_t = U^\top G_t, \qquad \omega_t = \mathrm{Adam}(\sigma_t), \qquad
        \Delta_{t, \cdot i} = \sqrt{\alpha} \, G_{t, \cdot i} \,
        \|\omega_{t, \cdot i}\| / \|\sigma_{t, \cdot i}\|

    where U has normal entries of variance 1/r. U is not stored: it is drawn from the
    same key until its renewal. `limit_norm_growth` limits the update. The state is
    ``2 n r`` numbers per matrix with ``m <= n``, three more for the limiter and the
    bias correction.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the paper.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 192, 256, 256 in the authors' code for 60M, 130M,
            350M, 1B.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        eps: Added to its root (`scale_by_second_moment`); 1e-6 in the authors' code.
        scale: Factor :math:`\alpha` under the root; the authors' code has 1 per channel
            and 128 per tensor.
        limiter: Largest growth of the update's norm per step; None for none.
        max_shrink: As in `limit_norm_growth`; None is the paper.
        update_interval: U is renewed at steps 1, K + 1, 2K + 1, ...
        basis: ``"gaussian"``, or a function as in `galore`, whose vectors are stored.
        side: Which side is projected, as in `project_low_rank`.
        bias_correction: Whether to correct both moments, as Adam does.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Seed of the random numbers.
        last_layer: ``"method"`` treats an output head, recognized by its name, as a
            matrix; ``"other"`` leaves it to Adam, as in the paper.
        weight_decay: Decoupled weight decay of all but vectors; none in the paper.
        mu_dtype: Dtype of the momenta; None for float32.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.apollo(1.0, rank=2)
        >>> params = {"kernel": jnp.array([[1.0, 2.0], [4.0, 8.0]])}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> jnp.sign(-updates["kernel"]).tolist()
        [[1.0, 1.0], [1.0, 1.0]]

    References:
        Zhu et al., `APOLLO <https://arxiv.org/abs/2412.05270>`_, 2024, Algorithm 1.
        Deviations: the moments are corrected for their bias before the norms are taken;
        the authors' code applies the correction to the step size instead, so that its
        limiter sees the norms without it; those of `transforms.scale_gradient` and
        `galore`. Moments stay as they are when U is renewed, as in the code.
    """


@preset(
    _apollo,
    fixed={
        "rank": 1,
        "norm": "tensor",
        "basis": "gaussian",
        "transport": "keep",
        "qr": cholesky_qr,
    },
    scale=128.0,
)
def apollo_mini():
    r"""APOLLO-Mini for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        \sigma_t = u^\top G_t, \qquad \omega_t = \mathrm{Adam}(\sigma_t), \qquad
        \Delta_t = \sqrt{\alpha} \, G_t \, \|\omega_t\| / \|\sigma_t\|

    This is `apollo` of rank one, with one factor for the whole matrix. The state is
    ``2 n + 3`` numbers per matrix with ``m <= n`` (two less without bias correction).

    Args:
        **options: Those of `apollo`, without ``rank`` and ``basis``.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.apollo_mini(1.0, scale=1.0)
        >>> params = {"kernel": jnp.array([[1.0, 2.0], [4.0, 8.0]])}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (updates["kernel"] / updates["kernel"][0, 0]).round(3).tolist()
        [[1.0, 2.0], [4.0, 8.0]]

    References:
        Zhu et al., `APOLLO <https://arxiv.org/abs/2412.05270>`_, 2024, Section 4.2.
        Deviations: those of `apollo`.
    """


@preset(
    _apollo,
    fixed={"norm": "channel"},
    types={"basis": SingularBasis},
    basis="randomized_svd",
)
def apollo_svd():
    r"""APOLLO-SVD for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    This is `apollo` with the leading left singular vectors of a recent gradient as U,
    as in `galore`. The state is ``2 n r + m r`` numbers per matrix with ``m <= n``,
    three more for the limiter and the bias correction.

    Args:
        basis: ``"randomized_svd"``, ``"svd"`` for exact vectors, or a function.
        transport: What happens to the moments at a renewal, as in `project_low_rank`.
        qr: Kernel that orthonormalizes the singular vectors, as in `rotate`.
        **options: Those of `apollo`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.apollo_svd(1e-2, rank=2)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Zhu et al., `APOLLO <https://arxiv.org/abs/2412.05270>`_, 2024, Algorithm 1 with
        singular vectors. Deviations: those of `apollo`; singular vectors come from a
        randomized range finder.
    """


scale_by_apollo = direction(apollo)
scale_by_apollo_mini = direction(apollo_mini)
scale_by_apollo_svd = direction(apollo_svd)
