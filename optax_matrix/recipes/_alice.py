"""Alice: Eigen-Adam in a tracked and switching subspace, with compensation."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_choice,
    check_decay,
    check_dtype,
    check_not_negative,
    check_positive,
)
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._alice_block import alice_block
from optax_matrix.recipes._low_rank import coordinate_adam, with_last_layer
from optax_matrix.recipes._optimizer import matrix_optimizer, scaled_learning_rate
from optax_matrix.transforms.low_rank import COMPENSATIONS as KINDS


def scale_by_alice(
    *,
    rank: Any = 256,
    leading: Any = 40,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.9,
    b3: ArrayLike = 0.999,
    scale: ArrayLike = 0.3,
    residual_scale: ArrayLike = 0.4,
    update_interval: int = 200,
    switch: str = "complement",
    sampling: str = "subspace",
    start: str = "randomized",
    compensation: str | None = "optimal",
    limiter: ArrayLike = 1.01,
    max_shrink: ArrayLike | None = 2.0,
    side: str = "short",
    transport: Any = "keep",
    stagger: bool = False,
    seed: int = 0,
    qr: Any = cholesky_qr,
    last_layer: str = "other",
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as Alice does; leaves the others alone.

    .. math::
        \sigma_t = U^\top G_t, \quad
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) \sigma_t, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) \sigma_t^2, \quad
        \Delta_t = \alpha \, (U M_t / \sqrt{V_t} + \alpha_c C_t)

    with U from `transforms.subspace_basis` and C the residual of the projection with
    its columns equilibrated (`compensate`).

    Args:
        rank: Number of columns r, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 256, 256, 512 in the paper for 60M, 130M, 350M, 1.3B.
        leading: Number l of leading eigenvectors that stay at a renewal, an int or a
            float for a fraction of the rank; 40, 40, 40, 160 in the paper.
        b1: Decay rate of the momentum and of the compensation's norms.
        b2: Decay rate of the second moment.
        b3: Decay rate of the tracked average; 0 for Alice-0, which tracks nothing.
        scale: Factor :math:`\alpha`; 0.3, 0.3, 0.3, 0.25 in the paper.
        residual_scale: Factor :math:`\alpha_c`; 0.4, 0.4, 0.4, 0.2 in the paper.
        update_interval: U is renewed at steps 1, K, 2K, ...
        switch: From where the other r - l columns are drawn, as in
            `transforms.subspace_basis`; ``"none"`` for further eigenvectors.
        sampling: ``"subspace"`` or ``"columns"`` (the paper), as there.
        start: ``"randomized"`` or ``"exact"`` (an SVD) for the first basis.
        compensation: Kind of `compensate`, ``"optimal"``, ``"fira"`` or
            ``"fira_plus"``; None for none.
        limiter: Largest growth of the compensation's norm per step.
        max_shrink: As in `limit_norm_growth`; None is the paper.
        side: Which side is projected, as in `project_low_rank`.
        transport: What becomes of moments at a renewal, as in `project_low_rank`.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices,
            ``"other"`` for Adam's; the paper reports both.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for float32.

    Returns:
        A transformation for any tree; its state is ``2 n r + m r + r**2 + n + 2``
        numbers per matrix with ``m <= n`` (``r**2 + 1`` of them only with ``b3 > 0``),
        and a step count.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> options = {"b1": 0.0, "b2": 0.75, "scale": 1.0, "start": "exact"}
        >>> tx = om.scale_by_alice(rank=1, leading=1, **options)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> abs(updates["kernel"].round(3)).tolist()  # 0.4 from the residual
        [[0.4..., 0.0], [0.0, 2.0]]

    References:
        Structured Fisher (Alice), Algorithms 2 to 4 and 10. Deviations: the paper
        starts from :math:`U_0 = 0`, which subspace iteration cannot move, here the
        first basis is the gradient's leading left singular vectors, switched; a
        random subspace of the complement and not columns of an ``m x m`` one
        (``sampling``); no epsilon, as nothing is divided by zero; ``max_shrink`` and
        what else `compensate` and `project_low_rank` say. At a renewal the moments
        stay in the old basis, as in the paper (``transport="keep"``). At r = m, with
        ``scale=1.0, switch="none", transport="carry", start="exact"``, it is
        ``eigen_adam(policy="eigen_exact")`` of the same ``update_interval``.
    """
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_decay("b3", b3)
    check_positive("scale", scale)
    check_not_negative("residual_scale", residual_scale)
    check_choice("compensation", compensation, (*KINDS, None))
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    tracks = not (isinstance(b3, int | float) and b3 == 0)
    hyperparams = {
        "b1": b1,
        "b3": b3,
        "residual_scale": residual_scale,
        "limiter": limiter,
        "max_shrink": max_shrink,
    }
    options = {
        "rank": rank,
        "leading": leading,
        "update_interval": update_interval,
        "switch": switch,
        "sampling": sampling,
        "start": start,
        "compensation": compensation,
        "side": side,
        "transport": transport,
        "stagger": stagger,
        "seed": seed,
        "qr": qr,
        "tracks": tracks,
    }
    alice_block(optax.identity(), **hyperparams, **options)  # Checks them, now.

    def build(layout, b1, b2, scale, **others):
        inner = coordinate_adam(b1, b2, bias_correction=False, mu_dtype=mu_dtype)
        ids = {name: group.ids for name, group in layout.groups.items()}
        steps = alice_block(inner, b1=b1, ids=ids, **others, **options)
        return optax.chain(steps, optax.scale(scale))

    return on_matrices(
        build,
        hyperparams={**hyperparams, "b2": b2, "scale": scale},
        dimension_numbers=with_last_layer(last_layer, dimension_numbers),
        placement=placement,
        probe=qr is not cholesky_qr or callable(transport),
    )


def alice(
    learning_rate: optax.ScalarOrSchedule,
    *,
    rank: Any = 256,
    leading: Any = 40,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.9,
    b3: ArrayLike = 0.999,
    scale: ArrayLike = 0.3,
    residual_scale: ArrayLike = 0.4,
    update_interval: int = 200,
    switch: str = "complement",
    sampling: str = "subspace",
    start: str = "randomized",
    compensation: str | None = "optimal",
    limiter: ArrayLike = 1.01,
    max_shrink: ArrayLike | None = 2.0,
    side: str = "short",
    transport: Any = "keep",
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
    r"""Alice for matrices, Adam(0.9, 0.999) for the rest.

    `scale_by_alice`, then weight decay (none in the paper) and the learning rate.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02 in the paper.
        rank: Number of columns r, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 256, 256, 512 in the paper for 60M, 130M, 350M, 1.3B.
        leading: Number l of leading eigenvectors that stay at a renewal, an int or a
            float for a fraction of the rank; 40, 40, 40, 160 in the paper.
        b1: Decay rate of the momentum and of the compensation's norms.
        b2: Decay rate of the second moment.
        b3: Decay rate of the tracked average; 0 for Alice-0, which tracks nothing.
        scale: Factor :math:`\alpha`; 0.3, 0.3, 0.3, 0.25 in the paper.
        residual_scale: Factor :math:`\alpha_c`; 0.4, 0.4, 0.4, 0.2 in the paper.
        update_interval: U is renewed at steps 1, K, 2K, ...
        switch: From where the other r - l columns are drawn, as in
            `transforms.subspace_basis`; ``"none"`` for further eigenvectors.
        sampling: ``"subspace"`` or ``"columns"`` (the paper), as there.
        start: ``"randomized"`` or ``"exact"`` (an SVD) for the first basis.
        compensation: Kind of `compensate`, ``"optimal"``, ``"fira"`` or
            ``"fira_plus"``; None for none.
        limiter: Largest growth of the compensation's norm per step.
        max_shrink: As in `limit_norm_growth`; None is the paper.
        side: Which side is projected, as in `project_low_rank`.
        transport: What becomes of moments at a renewal, as in `project_low_rank`.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Of the random numbers.
        qr: Kernel of orthonormal columns, as in `rotate`.
        last_layer: ``"method"`` for an output head (by its name) among the matrices,
            ``"other"`` for Adam's; the paper reports both.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for Adam(0.9, 0.999).
        other_learning_rate: Learning rate of that Adam. The paper does not state it;
            None for ``0.05 * learning_rate``, which at 0.02 is the 1e-3 of its Adam.
        mu_dtype: Dtype of the momenta; None for float32.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.alice(0.02, rank=2, leading=1)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_alice(
        rank=rank,
        leading=leading,
        b1=b1,
        b2=b2,
        b3=b3,
        scale=scale,
        residual_scale=residual_scale,
        update_interval=update_interval,
        switch=switch,
        sampling=sampling,
        start=start,
        compensation=compensation,
        limiter=limiter,
        max_shrink=max_shrink,
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
    if other_learning_rate is None:
        other_learning_rate = scaled_learning_rate(learning_rate, 0.05)
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
