"""Shampoo: inverse roots of accumulated Gram matrices on both sides."""

from typing import Literal, Unpack

from optax_matrix._arguments import Decay, Dtype, NotNegative, PositiveInt, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import momentum, precondition
from optax_matrix.transforms.sides import MatrixSide


@recipe
def shampoo(
    learning_rate: Rate,
    *,
    b1: Decay | None = None,
    b2: Decay | None = None,
    bias_correction: bool = False,
    root: PositiveInt = 4,
    side: MatrixSide = "both",
    max_dim: PositiveInt | None = None,
    block_size: PositiveInt | None = None,
    eps: NotNegative = 1e-6,
    method: Literal["newton", "eigh"] = "newton",
    update_interval: PositiveInt = 1,
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Shampoo for matrices, AdamW(0.9, 0.95) for the rest.

    .. math::
        L_t = L_{t-1} + G_t G_t^\top, \quad
        R_t = R_{t-1} + G_t^\top G_t, \qquad
        \Delta_t = L_t^{-1/4} G_t R_t^{-1/4}

    The state is one matrix of each side per matrix, two if ``update_interval`` is above
    1, and a momentum if there is one. With sums the updates shrink like
    :math:`1 / \sqrt{t}`. To use the learning rate of AdamW, chain ``scale_by_shampoo``
    with `match_rms`.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.1, where the study
            begins. The paper has none for language models.
        b1: Decay rate of a momentum of the gradients, used in place of :math:`G_t`;
            None for none, as in the paper.
        b2: Decay rate of averages, used in place of the sums; None for sums.
        bias_correction: Whether averages are divided by :math:`1 - b_2^t`.
        root: The root; 2 with one side only is whitening.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Longer sides have no factor; None for no bound. With ``block_size`` the
            sides of blocks count, but ``"short"`` is a side of the whole matrix.
            The paper has no bound; `init` warns of a side of more than 10,000 that is
            16 times the other one.
        block_size: Largest side of the blocks that a matrix is cut into, each with
            factors of its own, as in Distributed Shampoo, whose paper has 1024 for
            most models and its code 128 (there a longer side than
            ``max_preconditioner_dim`` has no factor). None for whole matrices, whose
            sums have m/n + n/m numbers per weight, 4.25 for 4096 x 16384, and roots as
            many. In square blocks they have 2.
        eps: Added to the diagonals, relative to the largest eigenvalue.
        method: ``"newton"`` (products only) or ``"eigh"`` (much faster on a CPU), of
            `linalg.inverse_root`.
        update_interval: The roots are renewed at steps 1, 2, 4, 8, ... and then every
            ``update_interval`` steps. Taking them at every step, as the paper does, is
            most of a step's time; KL-Shampoo takes its own every 10.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.shampoo(1.0, eps=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Gupta et al., `Shampoo <https://arxiv.org/abs/1802.09568>`_, 2018, Algorithm 1;
        Structured Fisher (Alice), Algorithm 5, whose sign in the exponent is a
        misprint. Deviations: epsilon is relative and added when a root is taken, where
        the paper starts the sums with it; roots are taken by coupled Newton iterations,
        so that no eigendecomposition is compiled. Sums never forget an unclipped
        gradient of 1e20: chain `optax.clip_by_global_norm` in front.
    """
    chain = precondition(
        power=1 / root,
        side=lambda layout: sides_within(layout, side, max_dim, block_size),
        block_size=block_size,
        decay=b2,
        bias_correction=bias_correction,
        eps=eps,
        method=method,
        update_interval=update_interval,
        momentum=None if b1 is None else momentum(b1, dtype=mu_dtype),
    )

    return Method(chain)


scale_by_shampoo = direction(shampoo)
