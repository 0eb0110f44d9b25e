"""SUMO: the exact polar factor of a momentum in a subspace."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_at_least_one,
    check_choice,
    check_decay,
    check_dtype,
    check_positive,
)
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cholesky_qr, newton_schulz, polar_qr
from optax_matrix.recipes._low_rank import with_last_layer
from optax_matrix.recipes._optimizer import Polar, check_polar, matrix_optimizer
from optax_matrix.recipes._subspace_adam import singular_basis
from optax_matrix.transforms import (
    limit_norm_growth,
    match_rms,
    orthogonalize,
    project_low_rank,
    scale_by_shape,
)

SCALINGS = ("max", "rms", "none")


def scale_by_sumo(
    *,
    rank: Any = 128,
    b1: ArrayLike = 0.95,
    polar: Polar = polar_qr,
    scaling: str = "max",
    scale: ArrayLike = 1.0,
    limiter: ArrayLike | None = 1.1,
    update_interval: int = 200,
    basis: str = "randomized_svd",
    side: str = "long",
    transport: Any = "carry",
    stagger: bool = False,
    seed: int = 0,
    qr: Any = cholesky_qr,
    last_layer: str = "other",
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as SUMO does; leaves the others alone.

    .. math::
        M_t = \mu M_{t-1} + Q^\top G_t, \qquad
        \Delta_t = c \, \alpha \, Q \, \mathrm{polar}(M_t)

    with Q the leading left singular vectors of a gradient. When they are renewed,
    :math:`M \leftarrow (Q_{new}^\top Q_{old}) M`.

    Args:
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that.
        b1: Decay rate :math:`\mu` of the momentum.
        polar: Kernel of the polar factor: `linalg.polar_qr` is exact; the paper's
            ablation is `linalg.newton_schulz`.
        scaling: The factor c: ``"max"``, :math:`0.2 \sqrt{\max(m, n)}` as printed, with
            which the root mean square of the update is
            :math:`0.2 \sqrt{r / \min(m, n)}`; ``"rms"``, to a root mean square of 0.2;
            ``"none"``, 1.
        scale: Factor :math:`\alpha`.
        limiter: Largest growth of the polar factor's norm per step; None for none. A
            momentum of full rank has a polar factor of norm :math:`\sqrt r`, so that
            this acts on momenta of lower rank only.
        update_interval: Q is renewed at steps 1, K + 1, 2K + 1, ...
        basis: ``"randomized_svd"``, or ``"svd"`` for exact vectors.
        side: Which side is projected, as in `project_low_rank`; ``"long"`` is
            Algorithm 1, ``"short"`` is GaLore's.
        transport: What becomes of the momentum at a renewal, as in `project_low_rank`.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for float32.

    Returns:
        A transformation for any tree; its state is ``n r + m r`` numbers per matrix,
        one for the limiter, and a step count.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_sumo(rank=1, scaling="none")
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        SUMO, Algorithm 1. Its Block 4 scales by :math:`\sqrt{\max(m, n)}` "following"
        Moonlight, whose 0.2 is taken over; the ratio of Block 3 is printed
        :math:`\|O_t\| / \|O_t\|`, the text has :math:`\|O_{t-1}\|`. An average in place
        of the sum (Appendix C) has the same polar factor. Deviations: the polar factor
        of a momentum without full rank is the compact one; the alternative criterion
        for a renewal, :math:`\|Q^\top G\| \le \varsigma`, has no value in the paper and
        is left out; what else `project_low_rank` and `limit_norm_growth` say.
    """
    check_decay("b1", b1)
    check_polar(polar)
    check_choice("scaling", scaling, SCALINGS)
    check_positive("scale", scale)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    if limiter is not None:
        check_at_least_one("limiter", limiter)
    options = {
        "rank": rank,
        "side": side,
        "basis": singular_basis(basis, qr),
        "update_interval": update_interval,
        "phase": 0,
        "stagger": stagger,
        "transport": transport,
        "seed": seed,
    }
    project_low_rank(optax.identity(), **options)  # Checks its arguments, now.

    def build(layout, b1, scale, limiter):
        momentum = optax.trace(b1, accumulator_dtype=mu_dtype)
        inner = optax.chain(momentum, orthogonalize(polar), _limited(limiter))
        ids = {name: group.ids for name, group in layout.groups.items()}
        return optax.chain(
            project_low_rank(inner, ids=ids, **options),
            match_rms(0.2) if scaling == "rms" else scale_by_shape(scaling),
            optax.scale(scale),
        )

    return on_matrices(
        build,
        hyperparams={"b1": b1, "scale": scale, "limiter": limiter},
        dimension_numbers=with_last_layer(last_layer, dimension_numbers),
        placement=placement,
        probe=polar not in (polar_qr, newton_schulz)
        or qr is not cholesky_qr
        or callable(transport),
    )


def _limited(limiter: ArrayLike | None) -> optax.GradientTransformation:
    return optax.identity() if limiter is None else limit_norm_growth(limiter)


def sumo(
    learning_rate: optax.ScalarOrSchedule,
    *,
    rank: Any = 128,
    b1: ArrayLike = 0.95,
    polar: Polar = polar_qr,
    scaling: str = "max",
    scale: ArrayLike = 1.0,
    limiter: ArrayLike | None = 1.1,
    update_interval: int = 200,
    basis: str = "randomized_svd",
    side: str = "long",
    transport: Any = "carry",
    stagger: bool = False,
    seed: int = 0,
    qr: Any = cholesky_qr,
    last_layer: str = "other",
    weight_decay: optax.ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""SUMO for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    `scale_by_sumo`, then decoupled weight decay (for which the paper has no value) and
    the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; 1e-5 to 3e-5 in the
            paper's fine-tuning.
        rank: Number of vectors r, an int (clipped to the shorter side) or a float for a
            fraction of that; 4 and 8 in the paper's fine-tuning, 128, 256, 256, 512 in
            its pre-training of 60M, 130M, 350M, 1B.
        b1: Decay rate of the momentum.
        polar: Kernel of the polar factor: `linalg.polar_qr` is exact; the paper's
            ablation is `linalg.newton_schulz`.
        scaling: ``"max"``, :math:`0.2 \sqrt{\max(m, n)}` as printed; ``"rms"``, to a
            root mean square of 0.2; ``"none"``, 1.
        scale: Factor of the update; 4 at rank 4 and 2 at rank 8 in the paper's
            fine-tuning.
        limiter: Largest growth of the polar factor's norm per step; None for none.
        update_interval: Q is renewed at steps 1, K + 1, 2K + 1, ...
        basis: ``"randomized_svd"``, or ``"svd"`` for exact vectors.
        side: Which side is projected, as in `project_low_rank`.
        transport: What becomes of the momentum at a renewal, as in `project_low_rank`.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices;
            ``"other"`` for Adam's.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for Adam(0.9, 0.999).
        other_learning_rate: Learning rate of that Adam; None for ``learning_rate``.
        mu_dtype: Dtype of the momenta; None for float32.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.sumo(1e-3, rank=2)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_sumo(
        rank=rank,
        b1=b1,
        polar=polar,
        scaling=scaling,
        scale=scale,
        limiter=limiter,
        update_interval=update_interval,
        basis=basis,
        side=side,
        transport=transport,
        stagger=stagger,
        seed=seed,
        qr=qr,
        last_layer=last_layer,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )
    return matrix_optimizer(
        matrix,
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=with_last_layer(last_layer, dimension_numbers),
        other=other,
        other_learning_rate=other_learning_rate,
        other_b2=0.999,
        mu_dtype=mu_dtype,
    )
