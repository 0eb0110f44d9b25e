"""SPlus: signs in the two-sided eigenbasis of the averaged gradient."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_choice,
    check_decay,
    check_dtype,
    check_positive,
    check_positive_int,
    check_rate,
)
from optax_matrix.layout import map_matrices, on_matrices
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._optimizer import beside_other, scaled_learning_rate
from optax_matrix.recipes._orientation import sides_within
from optax_matrix.transforms import rotate, scale_by_shape
from optax_matrix.transforms.sides import MATRIX_SIDES as SIDES
from optax_matrix.transforms.update_size import SHAPE_RULES

_OTHER_RATE = 0.001  # The authors' code multiplies by it where nothing rotates.


def scale_by_splus(
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    scale: ArrayLike = 2.0,
    policy: str = "eigen",
    update_interval: int = 10,
    side: str = "both",
    max_dim: int | None = 10_000,
    qr: Any = cholesky_qr,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as SPlus does; leaves the others alone.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \qquad
        \Delta_t = \frac{c}{m + n} \, U_L \,
        \mathrm{sign}(U_L^\top M_t U_R) \, U_R^\top

    with U the eigenvectors of the averages of :math:`G G^\top` and :math:`G^\top G`,
    renewed after the update.

    Args:
        b1: Decay rate of the momentum.
        b2: Decay rate of the averages of the Gram matrices.
        scale: The factor c: 2 in the paper, 0.5 in its authors' code.
        policy: ``"eigen"``, a power step of the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is sign
            descent.
        update_interval: The bases are renewed at step 1 and every so many; the paper
            has 100 for exact eigenvectors.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Sides above it do not rotate, as in the authors' code; None for all.
        qr: Kernel of orthonormal columns, as in `rotate`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum, and for each rotated
        side two matrices of it (average and basis), per matrix, and step counts.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_splus()
        >>> params = {"kernel": jnp.array([[3.0, -1.0], [0.0, 5.0]])}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> updates["kernel"].tolist()  # The first basis is the identity.
        [[0.5, -0.5], [0.0, 0.5]]


    References:
        Frans et al., `A Stable Whitening Optimizer
        <https://arxiv.org/abs/2506.07254>`_, 2025, and its authors' code. Deviations:
        the default renewal is a power step from the identity (``policy="eigen_exact",
        update_interval=100`` is the paper's), so that no eigendecomposition is
        compiled; entries of the rotated momentum that are rounding noise count as zero
        (`rotate`); no average of the parameters for evaluation, for which `optax.ema`
        of them serves; a matrix with a side above ``max_dim`` keeps the factor
        c / (m + n), where the authors' PyTorch code gives it the rate of vectors.
    """
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_positive("scale", scale)
    check_choice("policy", policy, ("eigen", "eigen_exact", "identity"))
    check_choice("side", side, SIDES)
    if max_dim is not None:
        check_positive_int("max_dim", max_dim)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    options = {"policy": policy, "qr": qr, "update_interval": update_interval}
    rotate(optax.identity(), **options)  # Checks its arguments, now.

    def build(layout, b1, b2, scale):
        rotated = rotate(
            optax.scale_by_sign(),
            side=sides_within(layout, side, max_dim),
            statistics="gradient",
            decay=b2,
            momentum=optax.ema(b1, False, mu_dtype),
            lag=True,
            **options,
        )
        return optax.chain(rotated, scale_by_shape("sum"), optax.scale(scale))

    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "scale": scale},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=qr is not cholesky_qr,
    )


def splus(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    scale: ArrayLike = 2.0,
    policy: str = "eigen",
    update_interval: int = 10,
    side: str = "both",
    max_dim: int | None = 10_000,
    qr: Any = cholesky_qr,
    weight_decay: optax.ScalarOrSchedule = 0.01,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""SPlus for matrices, AdamW for the rest.

    `scale_by_splus`, then decoupled weight decay and the learning rate, which is much
    larger than AdamW's, as an update has a root mean square of c / (m + n). The decay
    has that factor, too, as in the authors' code: per step a matrix loses
    :math:`\eta \lambda c / (m + n)` of itself, :math:`\eta` being ``learning_rate`` and
    :math:`\lambda` ``weight_decay``.

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.1 to 0.2 in the paper.
        b1: Decay rate of the momentum.
        b2: Decay rate of the averages of the Gram matrices.
        scale: The factor c: 2 in the paper, 0.5 in its authors' code.
        policy: ``"eigen"``, a power step of the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition; ``"identity"``, which is sign
            descent.
        update_interval: The bases are renewed at step 1 and every so many; the paper
            has 100 for exact eigenvectors.
        side: ``"both"``, or one side only: ``"out"``, ``"in"``, ``"short"``.
        max_dim: Sides above it do not rotate, as in the authors' code; None for all.
        qr: Kernel of orthonormal columns, as in `rotate`.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule; of
            matrices in the scale of their updates, as above.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for 0.001 of
            ``learning_rate``, which the authors' code gives to what it does not rotate.
        mu_dtype: Dtype of the momenta; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.splus(1e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    matrix = scale_by_splus(
        b1=b1,
        b2=b2,
        scale=scale,
        policy=policy,
        update_interval=update_interval,
        side=side,
        max_dim=max_dim,
        qr=qr,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )
    check_rate("learning_rate", learning_rate)
    decay = optax.add_decayed_weights(weight_decay, weight_decay_mask)
    other_rate: Any = other_learning_rate
    if other_rate is None:
        other_rate = scaled_learning_rate(learning_rate, _OTHER_RATE)
    return beside_other(
        optax.chain(
            matrix,
            _of_scaled_params(decay, scale, dimension_numbers),
            optax.scale_by_learning_rate(learning_rate),
        ),
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=other_rate,
        mu_dtype=mu_dtype,
    )


def _of_scaled_params(
    tx: optax.GradientTransformation, scale: ArrayLike, numbers: Any
) -> optax.GradientTransformation:
    """A transformation that sees each matrix times its factor c / (m + n)."""

    def update_fn(updates, state, params=None):
        if params is not None:
            params = map_matrices(shrink, params, scale, dimension_numbers=numbers)
        return tx.update(updates, state, params)

    def shrink(w, ids, c):
        del ids
        return w * (c * SHAPE_RULES["sum"](*w.shape[-2:]))

    return optax.GradientTransformation(tx.init, update_fn)
