"""ARO: any base optimizer in a frame that aligns it with the momentum."""

from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_choice,
    check_decay,
    check_dtype,
    check_flag,
    check_positive,
)
from optax_matrix.layout import SHARINGS, on_matrices, residual_sets
from optax_matrix.layout._rules import with_embeddings
from optax_matrix.linalg import cholesky_qr
from optax_matrix.recipes._aro_bases import BASES, JOINT, aro_base, joint_base
from optax_matrix.recipes._optimizer import matrix_optimizer
from optax_matrix.recipes._orientation import ORIENTATIONS, sides
from optax_matrix.transforms import Sets, match_rms, rotate, rotate_shared


def scale_by_aro(
    base: Any = "sinkhorn",
    *,
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    policy: Any = "aro",
    orientation: str = "residual",
    qr: Any = cholesky_qr,
    update_interval: int = 1,
    sharing: str | None = None,
    joint: bool = True,
    target: ArrayLike = 0.2,
    dimension_numbers: Any = None,
    placement: Any = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Scales the gradients of matrices as ARO does; leaves the others alone.

    .. math::
        M_t = \beta_1 M_{t-1} + G_t, \quad
        R_t = \mathrm{qr}(M_t f(R_{t-1}^\top M_t)^\top), \quad
        D_t = R_t f(R_t^\top M_t), \quad
        \Delta_t = 0.2 \sqrt{mn} \, D_t / \|D_t\|_F

    Args:
        base: The base f: ``"sinkhorn"`` (five rounds), ``"adam"`` (the second moment
            of the momentum), ``"sign"``, ``"row_norm"``, or any transformation of
            stacks, which sees the rotated side as rows.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment of the base ``"adam"``.
        policy: How the rotation follows, as in `rotate`: ``"aro"``, ``"polar"``,
            ``"rgd"``, ``"eigen"``, ``"eigen_exact"``, ``"identity"``, or a function.
        orientation: Which side rotates: ``"residual"``, the one that touches the
            residual stream, where the dimension numbers say so (`layout.infer`) and
            the shorter one where they do not; ``"short"``; ``"out"``; ``"in"``. Any
            other choice, matrix by matrix, is said by the ``residual`` of dimension
            numbers, as in ``layout.by_path(numbers={"up": ...}, otherwise=rule)``.
            Shared rotations are on the residual side, whatever this says.
        qr: Kernel of orthonormal columns, as in `rotate`.
        update_interval: The rotation is renewed every so many steps.
        sharing: None for a rotation of its own for each matrix; ``"global"`` for one
            for all that touch the residual stream; ``"chain"`` for one at each place
            of the stream between layers, which are found by the numbers in paths and
            the axes of scanned layers (`layout.residual_sets`). Needs dimension numbers
            that know the residual sides, such as ``layout.infer(model)``.
        joint: With sharing, whether ``"sinkhorn"`` and ``"row_norm"`` take row norms
            over all matrices that share (the paper), or of each.
        target: Root mean square of the update; 0.2 is the usual size of Adam's.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        mu_dtype: Dtype of the momentum; None for the parameter's.

    Returns:
        A transformation for any tree; its state is a momentum and a rotation
        (``p * p`` for a rotated side of ``p``, at least float32) per matrix, for
        ``"adam"`` a second moment, too.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.scale_by_aro("row_norm", target=1.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params))
        >>> abs(updates["kernel"]).round(3).tolist()
        [[1.414..., 0.0], [0.0, 1.414...]]

    References:
        ARO, Eq. 4, Algorithm 3, Section 4.4; sharing: Eq. 47, 51, 52, Table 3. The
        momentum is a sum, where the paper has an average: no base sees the factor.
        Deviations: the shift of Cholesky QR is relative, and it repeats its pass
        (`linalg.cholesky_qr`); entries of the rotated momentum that are rounding noise
        count as zero (`rotate`).
    """
    check_decay("b1", b1)
    check_choice("orientation", orientation, ORIENTATIONS)
    check_positive("target", target)
    if mu_dtype is not None:
        check_dtype("mu_dtype", mu_dtype)
    check_flag("joint", joint)
    if isinstance(base, str):
        check_choice("base", base, BASES)
        check_decay("b2", b2)
    options = {"policy": policy, "qr": qr, "update_interval": update_interval}
    rotate(aro_base(base, b2), **options)  # Checks its arguments, now.
    if sharing is not None:
        check_choice("sharing", sharing, SHARINGS)

    def rotation(layout, b2):
        if sharing is None:
            return rotate(
                aro_base(base, b2), side=sides(layout, orientation), **options
            )
        member, count = residual_sets(layout, sharing)
        return rotate_shared(
            joint_base(base) if joint and base in JOINT else aro_base(base, b2),
            Sets(member, count, layout.axes),
            sides={name: group.residual for name, group in layout.groups.items()},
            **options,
        )

    def build(layout, b1, b2, target):
        momentum = optax.trace(b1, accumulator_dtype=mu_dtype)
        return optax.chain(momentum, rotation(layout, b2), match_rms(target))

    own = isinstance(base, str) and isinstance(policy, str)
    return on_matrices(
        build,
        hyperparams={"b1": b1, "b2": b2, "target": target},
        dimension_numbers=dimension_numbers,
        placement=placement,
        probe=sharing is None and not own,
    )


def aro(
    learning_rate: optax.ScalarOrSchedule,
    *,
    base: Any = "sinkhorn",
    b1: ArrayLike = 0.95,
    b2: ArrayLike = 0.95,
    policy: Any = "aro",
    orientation: str = "residual",
    qr: Any = cholesky_qr,
    update_interval: int = 1,
    sharing: str | None = None,
    joint: bool = True,
    target: ArrayLike = 0.2,
    full_model: bool = False,
    weight_decay: optax.ScalarOrSchedule = 0.1,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""ARO for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    `scale_by_aro`, then decoupled weight decay and the learning rate: AdamW's serves,
    as the updates have the size of AdamW's.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        base: The base: ``"sinkhorn"``, ``"adam"``, ``"sign"``, ``"row_norm"``, or any
            transformation of stacks.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment of the base ``"adam"``.
        policy: How the rotation follows, as in `rotate`.
        orientation: Which side rotates: ``"residual"``, ``"short"``, ``"out"``, or
            ``"in"``.
        qr: Kernel of orthonormal columns, as in `rotate`.
        update_interval: The rotation is renewed every so many steps.
        sharing: None, ``"global"`` or ``"chain"``, as in `scale_by_aro`.
        joint: With sharing, whether row norms are over all matrices that share.
        target: Root mean square of the update.
        full_model: Whether embeddings and head are matrices, too, and all other leaves
            go by the base without rotation in place of AdamW: by ``"adam"``'s own, else
            by the sign of their momentum, which is what the others make of a vector.
            With ``layout.infer`` or ``layout.by_path`` as ``dimension_numbers`` they
            are matrices on top of what the rule says; a tree says it by itself.
        weight_decay: Decoupled weight decay of both sides, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.95).
        other_learning_rate: Learning rate of that AdamW; None for ``learning_rate``.
        mu_dtype: Dtype of the momenta; None for the parameter's.

    Returns:
        An optimizer of the whole tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.aro(3e-4)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)
    """
    check_flag("full_model", full_model)
    if full_model:
        dimension_numbers = with_embeddings(dimension_numbers)
    matrix = scale_by_aro(
        base,
        b1=b1,
        b2=b2,
        policy=policy,
        orientation=orientation,
        qr=qr,
        update_interval=update_interval,
        sharing=sharing,
        joint=joint,
        target=target,
        dimension_numbers=dimension_numbers,
        placement=placement,
        mu_dtype=mu_dtype,
    )
    if full_model and other is None:
        rate = learning_rate if other_learning_rate is None else other_learning_rate
        other = optax.chain(
            optax.trace(b1, accumulator_dtype=mu_dtype),
            aro_base("adam" if base == "adam" else "sign", b2),
            optax.scale(target),
            optax.add_decayed_weights(weight_decay, weight_decay_mask),
            optax.scale_by_learning_rate(rate),
        )
    return matrix_optimizer(
        matrix,
        learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=other_learning_rate,
        mu_dtype=mu_dtype,
    )
