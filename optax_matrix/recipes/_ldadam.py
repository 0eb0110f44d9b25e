"""LDAdam: Adam in a subspace that moves at every step, with error feedback."""

from typing import Literal, Unpack

from optax_matrix._arguments import Decay, Dtype, Kernel, Rank, Rate, Seed
from optax_matrix.recipes._low_rank import LastLayer, with_last_layer
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import scale_by_tracked_adam
from optax_matrix.transforms.sides import ProjectedSide


@recipe
def ldadam(
    learning_rate: Rate,
    *,
    rank: Rank = 16,
    b1: Decay = 0.908,
    b2: Decay = 0.99,
    rho: Decay = 0.908,
    error_feedback: bool = True,
    start: Literal["randomized", "exact"] = "randomized",
    side: ProjectedSide = "short",
    seed: Seed = 0,
    qr: Kernel = "cholesky_qr",
    last_layer: LastLayer = "other",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""LDAdam for matrices, Adam(0.9, 0.99) for the rest, at one learning rate.

    .. math::
        A_t = G_t + E_t, \qquad P_t = \mathrm{qr}(B_t B_t^\top P_{t-1}), \qquad
        \Delta_t = P_t \, \mathrm{Adam}(P_t^\top A_t)

    where B is a mean of the momentum and :math:`A_t`, the moments move along with the
    basis P, and E is what the projections left out: `transforms.scale_by_tracked_adam`.
    The state is ``m n + 2 n r + m r`` numbers per matrix with ``m <= n``, ``m n`` fewer
    without error feedback. The authors keep E in the buffer of the gradient; here a
    gradient is not state.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.001 is the default of
            the authors' code.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 16 in the authors' code.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        rho: Weight of the momentum, relative to the gradient, in what the basis tracks.
        error_feedback: Whether the part outside the subspace is added to the next
            gradient.
        start: ``"randomized"`` or ``"exact"`` (an SVD, the paper) for the first basis.
        side: Which side is projected, as in `project_low_rank`.
        seed: Seed of the random numbers.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        last_layer: ``"method"`` treats an output head, recognized by its name, as a
            matrix; ``"other"`` leaves it to Adam.
        weight_decay: Decoupled weight decay of all but vectors.
        mu_dtype: Dtype of the momenta and the error; None for float32.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.ldadam(1.0, rank=1)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        Robert et al., `LDAdam <https://arxiv.org/abs/2410.16103>`_, 2024; as in the
        authors' code. Deviations: those of `transforms.scale_by_tracked_adam`. If
        ``b1`` or ``b2`` changes between steps, the bias corrections are those of their
        current values.
    """
    chain = scale_by_tracked_adam(
        b1,
        b2,
        rho=rho,
        rank=rank,
        side=side,
        error_feedback=error_feedback,
        start=start,
        seed=seed,
        qr=qr,
        mu_dtype=mu_dtype,
    )

    numbers = with_last_layer(last_layer, common)
    return Method(chain, dimension_numbers=numbers, other_b2=0.99, stops=False)


scale_by_ldadam = direction(ldadam)
