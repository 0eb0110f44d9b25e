"""Alice: Eigen-Adam in a tracked, switching subspace, with compensation."""

from typing import Any, Literal, Unpack

import optax

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
from optax_matrix.recipes._low_rank import (
    LastLayer,
    Transport,
    coordinate_adam,
    with_last_layer,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, preset, recipe
from optax_matrix.transforms import (
    back_project,
    compensate,
    project_low_rank,
    subspace_basis,
)
from optax_matrix.transforms.sides import ProjectedSide


@recipe
def alice(
    learning_rate: Rate,
    *,
    rank: Rank = 256,
    leading: Rank = 40,
    b1: Decay = 0.9,
    b2: Decay = 0.9,
    b3: Decay = 0.999,
    eps: NotNegative = 0.0,
    scale: Positive = 0.3,
    residual_scale: NotNegative | None = None,
    update_interval: PositiveInt = 200,
    switch: Literal[
        "none", "complement", "full_basis", "gaussian_mix", "gaussian"
    ] = "complement",
    sampling: Literal["columns", "subspace"] = "columns",
    start: Literal["randomized", "exact"] = "randomized",
    compensation: Literal["optimal", "fira", "fira_plus"] | None = "optimal",
    limiter: AtLeastOne = 1.01,
    max_shrink: AtLeastOne | None = 2.0,
    side: ProjectedSide = "short",
    transport: Transport = "keep",
    stagger: bool = False,
    seed: Seed = 0,
    qr: Kernel = "cholesky_qr",
    last_layer: LastLayer = "other",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""Alice for matrices, Adam(0.9, 0.999) for the rest.

    .. math::
        \sigma_t = U^\top G_t, \quad
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) \sigma_t, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) \sigma_t^2, \quad
        \Delta_t = \alpha \, (U M_t / \sqrt{V_t} + \alpha_c C_t)

    with U from `transforms.subspace_basis` and C the residual of the projection with
    its columns equilibrated (`compensate`). At the defaults no column exceeds the norm
    :math:`\alpha (\sqrt r + \alpha_c \sqrt{(m - r) / (1 - \beta_1)})`. The state is
    ``2 n r + m r + r**2 + n + 2`` numbers per matrix with ``m <= n``, ``r**2 + 1``
    fewer if ``b3`` is 0.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02 in the paper.
        rank: Number of columns r, an int (clipped to the shorter side) or a float for a
            fraction of that; 128, 256, 256, 512 in the paper for 60M, 130M, 350M, 1.3B.
        leading: Number l of leading eigenvectors that stay at a renewal, an int or a
            float for a fraction of the rank; 40, 40, 40, 160 in the paper.
        b1: Decay rate of the momentum and of the compensation's norms.
        b2: Decay rate of the second moment.
        b3: Decay rate of the tracked average; 0 tracks nothing (`alice_0`).
        eps: Added to the root of the second moment; none in the paper.
        scale: Factor :math:`\alpha`; 0.3, 0.3, 0.3, 0.25 in the paper.
        residual_scale: Factor :math:`\alpha_c`; 0.4, 0.4, 0.4, 0.2 in the paper, where
            Fira's compensation has none. None is 0.4, and 1 with ``"fira"``.
        update_interval: U is renewed at steps 1, K, 2K, ...
        switch: Where the other r - l columns are drawn from, as in
            `transforms.subspace_basis`; ``"none"`` takes further eigenvectors.
        sampling: ``"columns"`` (the paper) or ``"subspace"``, as for ``switch``.
        start: ``"randomized"`` or ``"exact"`` (an SVD) for the first basis. One that
            comes with a later renewal is randomized.
        compensation: Kind of `compensate`; None for none.
        limiter: Largest growth of the compensation's norm per step.
        max_shrink: As in `limit_norm_growth`; None is the paper.
        side: Which side is projected, as in `project_low_rank`.
        transport: What happens to the moments at a renewal, as in `project_low_rank`.
        stagger: Whether stacks are renewed in turn, as in `project_low_rank`.
        seed: Seed of the random numbers.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        last_layer: ``"method"`` treats an output head, recognized by its name, as a
            matrix; ``"other"`` leaves it to Adam. The paper reports both.
        weight_decay: Decoupled weight decay of all but vectors; none in the paper.
        mu_dtype: Dtype of the momenta; None for float32.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree. The paper does not state Adam's learning rate;
        here it is ``0.05 * learning_rate``, so 1e-3 at 0.02.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> options = {"b1": 0.0, "b2": 0.75, "scale": 1.0, "start": "exact"}
        >>> tx = om.alice(1.0, rank=1, leading=1, **options)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()  # 0.4 from the residual
        [[0.4..., 0.0], [0.0, 2.0]]

    References:
        `Structured Fisher <https://arxiv.org/abs/2502.07752>`_ (Alice), Algorithms 2 to
        4 and 10. Deviations: the paper starts from :math:`U_0 = 0`, which subspace
        iteration cannot leave; here the first basis is the gradient's leading left
        singular vectors, switched; ``max_shrink``; those of `compensate` and
        `project_low_rank`; ratios beyond Adam's largest are reduced
        (`scale_by_second_moment`). At a renewal the moments stay in the old basis, as
        in the paper (``transport="keep"``). At r = m, with
        ``scale=1.0, switch="none", transport="carry", start="exact"``, it is
        ``eigen_adam(policy="eigen_exact")`` with the same ``update_interval``.
    """
    combine: Any = back_project
    if compensation is not None:
        usual = 1.0 if compensation == "fira" else 0.4
        combine = compensate(
            compensation,
            scale=usual if residual_scale is None else residual_scale,
            decay=b1,
            limiter=limiter,
            max_shrink=max_shrink,
        )
    steps = project_low_rank(
        coordinate_adam(b1, b2, False, mu_dtype, eps),
        combine=combine,
        rank=rank,
        side=side,
        basis=subspace_basis(
            b3,
            leading=leading,
            switch=switch,
            sampling=sampling,
            start=start,
            qr=qr,
        ),
        update_interval=update_interval,
        stagger=stagger,
        transport=transport,
        seed=seed,
    )
    chain = optax.chain(steps, optax.scale(scale))

    numbers = with_last_layer(last_layer, common)
    return Method(chain, dimension_numbers=numbers, other_rate=0.05, other_b2=0.999)


@preset(alice, fixed={"b3": 0.0})
def alice_0():
    r"""Alice-0 for matrices, Adam(0.9, 0.999) for the rest: Alice without tracking.

    This is `alice` with ``b3=0``: a renewal is a step of subspace iteration on the
    current :math:`G G^\top` alone. The state is ``2 n r + m r + n + 1`` numbers per
    matrix with ``m <= n``.

    Args:
        **options: Those of `alice`, without ``b3``.

    Returns:
        An optimizer of the whole tree, with Adam's learning rate as in `alice`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> options = {"b1": 0.0, "b2": 0.75, "scale": 1.0, "start": "exact"}
        >>> tx = om.alice_0(1.0, rank=1, leading=1, **options)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(updates["kernel"].round(3)).tolist()
        [[0.4..., 0.0], [0.0, 2.0]]

    References:
        `Structured Fisher <https://arxiv.org/abs/2502.07752>`_ (Alice), Algorithm 4.
        Deviations: those of `alice`.
    """


scale_by_alice = direction(alice)
scale_by_alice_0 = direction(alice_0)
