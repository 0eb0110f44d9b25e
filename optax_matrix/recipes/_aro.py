"""ARO: any base optimizer in a frame that aligns it with the momentum.

Eigen-Sinkhorn, Eigen-Sign and Eigen-RowNorm are its control group: their frame depends
on the momentum alone.
"""

from functools import partial
from typing import Any, Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, PositiveInt, Rate
from optax_matrix.matrices.oriented import oriented
from optax_matrix.matrices.wider import with_embeddings
from optax_matrix.recipes._aro_bases import BaseName, aro_base
from optax_matrix.recipes._method import Method, decayed_others
from optax_matrix.recipes._recipe import Common, direction, preset, recipe
from optax_matrix.stacks.orientation import Orientation, oriented_sides
from optax_matrix.stacks.residual_sets import residual_sets
from optax_matrix.transforms import momentum, rotate
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.rotation import PolicyLike, PolicyName, Sets, rotate_shared
from optax_matrix.transforms.update_size import Scaling, check_matched, matched, scaled


@recipe
def aro(
    learning_rate: Rate,
    *,
    base: BaseName | Transformation = "sinkhorn",
    b1: Decay = 0.95,
    b2: Decay = 0.95,
    policy: PolicyName | PolicyLike = "aro",
    orientation: Orientation = "residual",
    qr: Kernel = "cholesky_qr",
    update_interval: PositiveInt = 1,
    sharing: Literal["global", "chain"] | None = None,
    joint: bool = True,
    scaling: Literal["rms"] | Scaling = "rms",
    full_model: bool = False,
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""ARO for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        R_t = \mathrm{qr}(M_t f(R_{t-1}^\top M_t)^\top), \quad
        D_t = R_t f(R_t^\top M_t), \quad
        \Delta_t = 0.2 \sqrt{mn} \, D_t / \|D_t\|_F

    The state is a momentum and a rotation (``p x p`` for a rotated side of length
    ``p``, at least float32) per matrix, and for the base ``"adam"`` a second moment.
    Updates are as large as those of AdamW.

    Args:
        learning_rate: Learning rate, a number or a schedule; 5e-4 (2B parameters) and
            3e-4 (8B) in the paper, which are the best rates of AdamW there.
        base: The base f: ``"sinkhorn"`` (five rounds), ``"adam"`` (the second moment
            of the momentum), ``"sign"``, ``"row_norm"`` (rows with a root mean square
            of one; with ``joint``, of norm one over all matrices), or any
            transformation of stacks. It gets matrices whose rows are the rotated side.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment of the base ``"adam"``.
        policy: How the rotation is chosen, as in `rotate`: ``"aro"``, ``"polar"``,
            ``"rgd"``, ``"eigen"``, ``"eigen_exact"``, ``"identity"``, a `Policy`.
        orientation: Which side rotates. ``"residual"`` is the side of the residual
            stream, by the usual names (input of q, k, v, up, gate; output of o, down)
            or by `matrices.infer`, and ``"prefer_right"`` elsewhere: the shorter side,
            of equal ones the input. ``"except_up"``, ``"except_qkv"`` and
            ``"except_embeddings"`` rotate the input side of all matrices (of embeddings
            the width) but those. These are the five rules of Fig. 19, the first is its
            best. ``"short"``, ``"out"`` and ``"in"`` are the same for all. To choose
            matrix by matrix, set ``residual`` in the dimension numbers, as in
            ``matrices.by_path(numbers={"up": ...}, otherwise=rule)``. Shared rotations
            are always on the residual side.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        update_interval: The rotation is renewed every ``update_interval`` steps.
        sharing: None gives each matrix a rotation of its own. ``"global"`` has one for
            all matrices that touch the residual stream; ``"chain"`` has one for each
            place of the stream between layers, which are found by the numbers in paths
            and the axes of scanned layers. Sharing needs the
            residual sides of all matrices, such as those of ``matrices.infer(model)``.
        joint: With sharing, whether ``"sinkhorn"`` and ``"row_norm"`` take row norms
            over all matrices that share (the paper), or over each of them.
        scaling: ``"rms"`` scales each matrix's update to a root mean square of 0.2,
            Adam's usual size, and `target_rms` to another; or a rule of
            `scale_by_shape`, a number or a function of ``(rows, cols)`` for the factor
            of :math:`D_t`.
        full_model: Whether embeddings and head are matrices, and all other leaves are
            updated by the base without rotation instead of AdamW: by ``"adam"`` for
            that base, otherwise by the sign of their momentum, which is what the other
            bases are for a vector, with the root mean square of the matrices. With
            ``matrices.infer`` or ``matrices.by_path`` as ``dimension_numbers``,
            embeddings and head become matrices beside those of the rule; a tree of
            dimension numbers must contain them.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.aro(1.0, base="row_norm", scaling="none", weight_decay=0.0)
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0, 7.0, 9.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> abs(jnp.diag(updates["kernel"])).round(3).tolist()
        [2.0, 2.0, 2.0, 2.0]

    References:
        `ARO <https://arxiv.org/abs/2602.09006>`_, Eq. 4, Algorithm 3, Section 4.4;
        sharing: Eq. 47, 51, 52, Table 3. Deviations: the shift of Cholesky QR is
        relative, and its pass is repeated (`linalg.cholesky_qr`); rows of the rotated
        momentum that are rounding noise count as zero (`rotate`).
    """
    if full_model:
        check_matched(scaling)
        common["dimension_numbers"] = with_embeddings(common.get("dimension_numbers"))
    numbers = common.get("dimension_numbers")
    if sharing is None:
        numbers = oriented(numbers, orientation)

    options: dict[str, Any] = {
        "policy": policy,
        "qr": qr,
        "update_interval": update_interval,
    }
    if sharing is None:
        side = lambda layout: oriented_sides(layout, orientation)
        rotated = rotate(aro_base(base, b2), side=side, **options)
    else:
        rotated = rotate_shared(
            aro_base(base, b2, jointly=joint),
            lambda layout: Sets(*residual_sets(layout, sharing), layout.axes),
            sides=lambda layout: {n: g.residual for n, g in layout.groups.items()},
            **options,
        )
    average, sized = momentum(b1, dtype=mu_dtype), matched(scaling)
    # A rotation keeps the root mean square of one that `sinkhorn` gives a matrix.
    is_unit = base == "sinkhorn" and sharing is None
    chain = optax.chain(average, rotated, scaled(scaling) if is_unit else sized)

    other = None
    if full_model:
        rate = common.get("other_learning_rate")
        unrotated = aro_base("adam" if base == "adam" else "sign", b2)
        other = lambda params: optax.chain(
            average,
            unrotated,
            sized,
            decayed_others(weight_decay, common, params),
            optax.scale_by_learning_rate(learning_rate if rate is None else rate),
        )
    return Method(
        chain, dimension_numbers=numbers, other=other, couples=sharing is not None
    )


_eigen = partial(
    preset, aro, types={"policy": Literal["eigen", "eigen_exact"]}, policy="eigen"
)
_FIXED = {"b2": 0.95, "sharing": None, "joint": True, "full_model": False}


@_eigen(fixed={"base": "sinkhorn", **_FIXED})
def eigen_sinkhorn():
    r"""Eigen-Sinkhorn for matrices, AdamW(0.9, 0.95) for the rest, at one rate.

    .. math::
        M_t = \beta_1 M_{t-1} + (1 - \beta_1) G_t, \quad
        R_t = \mathrm{qr}(M_t M_t^\top R_{t-1}), \quad
        D_t = R_t f(R_t^\top M_t), \quad
        \Delta_t = 0.2 \sqrt{mn} \, D_t / \|D_t\|_F

    where f is five rounds of Sinkhorn balancing. This is `aro` with the base
    ``"sinkhorn"`` and a rotation that depends on the momentum alone.

    Args:
        policy: ``"eigen"``, one power step from the last basis per renewal;
            ``"eigen_exact"``, an eigendecomposition.
        orientation: Which side rotates, as in `aro`.
        **options: Those of `aro`, without the base, the sharing and ``full_model``.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.eigen_sinkhorn(3e-4)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> state = tx.init(params)

    References:
        `ARO <https://arxiv.org/abs/2602.09006>`_, Section 5.2, where it is the control
        group of ARO. Deviations: those of `aro`.
    """


@_eigen(fixed={"base": "sign", **_FIXED})
def eigen_sign():
    """Eigen-Sign: `eigen_sinkhorn` with f the sign of every entry.

    Args:
        **options: Those of `eigen_sinkhorn`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import optax_matrix as om
        >>> tx = om.eigen_sign(3e-4)

    References:
        `ARO <https://arxiv.org/abs/2602.09006>`_, Section 5.2. Deviations: those of
        `aro`.
    """


@_eigen(fixed={"base": "row_norm", **_FIXED})
def eigen_rownorm():
    """Eigen-RowNorm: `eigen_sinkhorn` with f the scaling of rows to equal norms.

    With this base, ``policy="aro"`` of `aro` is the same.

    Args:
        **options: Those of `eigen_sinkhorn`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import optax_matrix as om
        >>> tx = om.eigen_rownorm(3e-4)

    References:
        `ARO <https://arxiv.org/abs/2602.09006>`_, Section 5.2. Deviations: those of
        `aro`.
    """


scale_by_aro = direction(aro, without=["full_model"])
scale_by_eigen_sinkhorn = direction(eigen_sinkhorn)
scale_by_eigen_sign = direction(eigen_sign)
scale_by_eigen_rownorm = direction(eigen_rownorm)
