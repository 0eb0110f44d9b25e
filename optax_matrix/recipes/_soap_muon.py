"""SOAP-Muon: SOAP on the short side, and the polar factor of what it gives."""

from functools import partial
from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Positive, PositiveInt, Rate
from optax_matrix.linalg import CUBIC, JORDAN, newton_schulz
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.stacks.orientation import sides_within
from optax_matrix.transforms import (
    compress_entries,
    in_eigenbasis,
    momentum,
    orthogonalize,
    scale_by_second_moment,
    scale_by_shape,
)
from optax_matrix.transforms.sides import MatrixSide
from optax_matrix.transforms.update_size import Scaling

_SEVEN_STEPS = partial(newton_schulz, coefficients=JORDAN * 5 + CUBIC * 2, steps=7)


@recipe
def soap_muon(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    b2: Decay = 0.98,
    b3: Decay = 0.98,
    policy: Literal["eigen", "eigen_exact", "identity"] = "eigen",
    update_interval: PositiveInt = 10,
    side: MatrixSide = "short",
    max_dim: PositiveInt | None = 10_000,
    polar: Kernel | None = None,
    power: Positive = 0.5,
    scaling: Scaling = "out/in",
    qr: Kernel = "cholesky_qr",
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""SOAP-Muon for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        L_t = \beta_3 L_{t-1} + (1 - \beta_3) G_t G_t^\top, \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) (U^\top G_t)^2, \\
        O_t = \mathrm{polar}(U^\top M_t / \sqrt{V_t}), \qquad
        \Delta_t = c \, U \, \mathrm{sign}(O_t) |O_t|^{1/2}

    where :math:`M_t` is the average of the gradients, U holds the eigenvectors of L,
    and c restores the norm of :math:`O_t` and contains the factor of ``scaling``.
    SOAP whitens the short side, Muon the other one. The state is two moments per
    matrix, and two matrices of each rotated side (average and basis).

    Args:
        learning_rate: Learning rate, a number or a schedule; 0.02, as for `muon`.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
        b3: Decay rate of the averages of the Gram matrices.
        policy: As in `soap`.
        update_interval: The bases are renewed at steps 1, K, 2K, ...; the report
            also uses 40.
        side: The side that rotates: ``"short"``, ``"out"``, ``"in"`` or ``"both"``.
        max_dim: Larger sides do not rotate; None for no bound.
        polar: Kernel that returns the polar factor; None for five steps of
            `linalg.newton_schulz` and two cubic ones, as its authors have.
        power: Exponent of the entries, :math:`1/2` above; 1.0 leaves them as they are.
        scaling: Rule of `scale_by_shape`: ``"out/in"``, ``"max"``, ``"unclipped"``,
            ``"sum"``, ``"none"``, or a number, a function of
            ``(rows, cols)`` or `target_rms`.
        qr: Kernel that orthonormalizes columns, as in `rotate`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.soap_muon(1.0, polar="polar_svd")
        >>> params = {"kernel": jnp.diag(jnp.array([3.0, 5.0]))}
        >>> updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        >>> (-updates["kernel"]).round(3).tolist()
        [[1.0, 0.0], [0.0, 1.0]]

    References:
        Vyas et al., `Improving SOAP using iterative whitening and Muon
        <https://github.com/nikhilvyas/SOAP_MUON>`_, 2024, Section 2, and its program
        for modded-nanogpt, whose defaults these are, with the side of the report.
        Deviations: those of `soap`; the step size does not contain Adam's bias
        corrections, which the polar factor makes void; the norm that is restored is
        that of the computed polar factor, there the root of the shorter side.
    """
    base = optax.chain(
        scale_by_second_moment(b2, bias_correction=True),
        orthogonalize(polar or _SEVEN_STEPS),
        compress_entries(power),
    )
    rotated = in_eigenbasis(
        base,
        policy=policy,
        side=lambda layout: sides_within(layout, side, max_dim),
        qr=qr,
        update_interval=update_interval,
        decay=b3,
        momentum=momentum(b1, dtype=mu_dtype),
    )
    chain = optax.chain(rotated, scale_by_shape(scaling))

    return Method(chain)


scale_by_soap_muon = direction(soap_muon)
