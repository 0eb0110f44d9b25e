"""GaLore: Adam on the leading left singular vectors' coordinates."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import check_positive
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._low_rank import with_last_layer
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.recipes._subspace_adam import singular_basis, subspace_adam
from optax_matrix.transforms import back_project
from optax_matrix.transforms.low_rank import as_combining


def scale_by_galore(
    *,
    rank: Any = 128,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    scale: ArrayLike = 0.25,
    update_interval: int = 200,
    basis: str = "randomized_svd",
    side: str = "short",
    transport: Any = "keep",
    bias_correction: bool = True,
    stagger: bool = False,
    seed: int = 0,
    qr: Any = cholesky_qr,
    last_layer: str = "other",
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as GaLore does; leaves the others alone.

    .. math::
        \sigma_t = U^\top G_t, \qquad
        \Delta_t = \alpha \, U \, \mathrm{Adam}(\sigma_t)

    with U the leading left singular vectors of a gradient, renewed now and then.

    Args:
        rank: Number of vectors, an int (clipped to the shorter side) or a float for a
            fraction of that.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        scale: Factor :math:`\alpha`.
        update_interval: U is renewed at steps 1, K + 1, 2K + 1, ...
        basis: ``"randomized_svd"``, or ``"svd"`` for exact vectors, the paper's.
        side: Which side is projected, as in `project_low_rank`.
        transport: What becomes of the moments at a renewal, as in `project_low_rank`.
        bias_correction: Whether to correct both moments, as Adam does.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for float32.

    Returns:
        A transformation for any tree; its state is ``2 n r + m r + 1`` numbers per
        matrix with ``m <= n`` (one less without bias correction), and step counts.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_galore(rank=1, scale=1.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.0, 0.0], [0.0, 1.0]]

    References:
        Zhao et al., `GaLore <https://arxiv.org/abs/2403.03507>`_, 2024, Algorithm 2;
        renewals as in the authors' code, which of square matrices projects the columns
        (the paper, and this, the rows). Deviations: singular vectors by a randomised
        range finder; no epsilon (theirs is 1e-6), as nothing is divided by
        zero; coordinates that are rounding noise count as zero (`project_low_rank`).
    """
    check_positive("scale", scale)
    combine = as_combining(back_project)
    return subspace_adam(
        lambda scale: optax.chain(combine, optax.scale(scale)),
        {"scale": scale},
        b1=b1,
        b2=b2,
        basis=singular_basis(basis, qr),
        bias_correction=bias_correction,
        probe=qr is not cholesky_qr,
        last_layer=last_layer,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
        rank=rank,
        side=side,
        update_interval=update_interval,
        transport=transport,
        stagger=stagger,
        seed=seed,
    )


def galore(
    learning_rate: optax.ScalarOrSchedule,
    *,
    rank: Any = 128,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    scale: ArrayLike = 0.25,
    update_interval: int = 200,
    basis: str = "randomized_svd",
    side: str = "short",
    transport: Any = "keep",
    bias_correction: bool = True,
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
    r"""GaLore for matrices, Adam(0.9, 0.999) for the rest, at one learning rate.

    `scale_by_galore`, then decoupled weight decay (none in the paper) and the learning
    rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.01 in the paper, 0.02
            (with a scale of 0.3) in that of Alice.
        rank: Number of vectors, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 256, 256, 512 in the paper for 60M, 130M, 350M, 1B.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        scale: Factor of the update.
        update_interval: U is renewed at steps 1, K + 1, 2K + 1, ...
        basis: ``"randomized_svd"``, or ``"svd"`` for exact vectors, the paper's.
        side: Which side is projected, as in `project_low_rank`.
        transport: What becomes of the moments at a renewal, as in `project_low_rank`.
        bias_correction: Whether to correct both moments, as Adam does.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices;
            ``"other"`` for Adam's, as in the paper.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for Adam(0.9, 0.999).
        other_learning_rate: Learning rate of that Adam; None for ``learning_rate``, as
            in the authors' code.
        mu_dtype: Dtype of the momenta; None for float32.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.galore(1e-2, rank=2)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_galore(
        rank=rank,
        b1=b1,
        b2=b2,
        scale=scale,
        update_interval=update_interval,
        basis=basis,
        side=side,
        transport=transport,
        bias_correction=bias_correction,
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
