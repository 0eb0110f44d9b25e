"""SUMO: the exact polar factor of a momentum in a subspace."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import (
    AtLeastOne,
    Decay,
    Dtype,
    Kernel,
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
    singular_basis,
    with_last_layer,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import (
    limit_norm_growth,
    momentum,
    orthogonalize,
    project_low_rank,
)
from optax_matrix.transforms.low_rank import project_both_sides
from optax_matrix.transforms.update_size import Scaling, matched


@recipe
def sumo(
    learning_rate: Rate,
    *,
    rank: Rank = 128,
    b1: Decay = 0.95,
    polar: Kernel = "polar_qr",
    scaling: Literal["rms"] | Scaling = "max",
    scale: Positive = 1.0,
    limiter: AtLeastOne | None = 1.1,
    max_shrink: AtLeastOne | None = None,
    update_interval: PositiveInt = 200,
    renew_below: Positive | None = None,
    basis: SingularBasis = "randomized_svd",
    side: Literal["out", "in", "short", "long", "both"] = "long",
    transport: Transport = "carry",
    stagger: bool = False,
    seed: Seed = 0,
    qr: Kernel = "cholesky_qr",
    last_layer: LastLayer = "other",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""SUMO for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    .. math::
        M_t = \mu M_{t-1} + (1 - \mu) Q^\top G_t, \qquad
        \Delta_t = c \, \alpha \, Q \, \mathrm{polar}(M_t)

    where Q holds the leading left singular vectors of a recent gradient. When they are
    renewed, :math:`M \leftarrow (Q_{new}^\top Q_{old}) M`. The state is ``n r + m r``
    numbers per matrix (``r^2`` more for both sides), one more for the limiter.

    Args:
        learning_rate: Learning rate, a number or a schedule; 1e-5 to 3e-5 in the
            paper's fine-tuning.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 4 and 8 in the paper's fine-tuning, 128, 256, 256, 512 in
            its pre-training of 60M, 130M, 350M, 1B.
        b1: Decay rate :math:`\mu` of the momentum.
        polar: Kernel of the polar factor: `linalg.polar_qr` is exact; the paper's
            ablation is `linalg.newton_schulz`.
        scaling: The factor c: ``"max"`` is Moonlight's :math:`0.2 \sqrt{\max(m, n)}`,
            with which the root mean square of the update is
            :math:`0.2 \sqrt{r / \min(m, n)}`; ``"sqrt_max"`` is
            :math:`\sqrt{\max(m, n)}` as printed; ``"rms"`` scales to a root mean square
            of 0.2, `target_rms` to another; ``"none"`` is 1; or another rule of
            `scale_by_shape`, a number or a function of ``(rows, cols)``.
        scale: Factor :math:`\alpha`; 4 at rank 4 and 2 at rank 8 in the paper's
            fine-tuning.
        limiter: Largest growth of the polar factor's norm per step; None for none. A
            momentum of full rank has a polar factor of norm :math:`\sqrt r`, so this
            affects momenta of lower rank only.
        max_shrink: Largest factor by which the norm that the limiter remembers falls
            per step, as in `limit_norm_growth`; None for no bound, as in the paper.
        update_interval: Q is renewed at steps 1, K + 1, 2K + 1, ...
        renew_below: Norm of :math:`Q^\top G` at or below which Q is renewed besides
            (``project_low_rank``); the paper gives no value.
        basis: ``"randomized_svd"``, or ``"svd"`` for exact vectors.
        side: Which side is projected, as in `project_low_rank`; ``"long"`` is
            Algorithm 1, ``"both"`` Definition C.1. ``"short"``, GaLore's choice, needs
            as much memory and was better on one task of two
            (``examples/study/pages/equal.md``).
        transport: What happens to the momentum at a renewal, as in `project_low_rank`.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Seed of the random numbers.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        last_layer: ``"method"`` treats an output head, recognized by its name, as a
            matrix; ``"other"`` leaves it to Adam.
        weight_decay: Decoupled weight decay of all but vectors; the paper gives no
            value.
        mu_dtype: Dtype of the momenta; None for float32.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.sumo(1.0, rank=1, scaling="none")
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        `SUMO <https://arxiv.org/abs/2505.24749>`_, Algorithm 1. The ratio in Block 3 is
        printed :math:`\|O_t\| / \|O_t\|`; the text has :math:`\|O_{t-1}\|`. The
        momentum is an average, as in Appendix C; the sum of Algorithm 1 has the same
        polar factor while :math:`\mu` is constant. Deviations: Block 4 scales by
        :math:`\sqrt{\max(m, n)}`, "following" Moonlight, whose factor 0.2 is added by
        default; the polar factor of a rank-deficient momentum is the compact one; those
        of `project_low_rank`.
    """
    polar_factor = orthogonalize(polar)
    inner = [momentum(b1, dtype=mu_dtype), polar_factor]
    if limiter is not None:
        inner.append(limit_norm_growth(limiter, max_shrink=max_shrink))
    project = project_both_sides
    if side != "both":
        project = partial(project_low_rank, side=side)
    steps = project(
        optax.chain(*inner),
        rank=rank,
        basis=singular_basis(basis, qr),
        update_interval=update_interval,
        phase=0,
        renew_below=renew_below,
        stagger=stagger,
        transport=transport,
        seed=seed,
    )
    chain = optax.chain(steps, matched(scaling), optax.scale(scale))

    numbers = with_last_layer(last_layer, common)
    return Method(chain, dimension_numbers=numbers, other_b2=0.999)


scale_by_sumo = direction(sumo)
