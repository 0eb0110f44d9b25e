"""AdaMuon: Adam's second moment of the polar factor."""

from typing import Literal, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Positive, Rate
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, direction, recipe
from optax_matrix.transforms import in_float32, momentum, orthogonalize
from optax_matrix.transforms.update_size import Scaling, matched


@recipe
def adamuon(
    learning_rate: Rate,
    *,
    variant: Literal["sign", "unsigned"] = "sign",
    b1: Decay = 0.95,
    b2: Decay | None = None,
    nesterov: bool = True,
    eps: Positive = 1e-8,
    polar: Kernel = "newton_schulz",
    scaling: Literal["rms"] | Scaling = "rms",
    weight_decay: Rate = 0.1,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""AdaMuon for matrices, AdamW(0.9, 0.95) for the rest, at one learning rate.

    .. math::
        O_t = \mathrm{polar}(f(\tilde{M}_t)), \quad
        V_t = \beta_2 V_{t-1} + (1 - \beta_2) O_t^2, \quad
        \Delta_t = 0.2 \sqrt{mn} \, \hat{O}_t / \|\hat{O}_t\|_F, \quad
        \hat{O}_t = O_t / (\sqrt{V_t} + \epsilon)

    element by element. The state is a momentum and a second moment per matrix, the
    latter at least float32. Two algorithms were published under this name:

    * ``"sign"`` (the later one): :math:`f` is the sign, :math:`\beta_2 = \beta_1`, and
      :math:`V_t` is used as it is;
    * ``"unsigned"`` (the first one): :math:`f` is the identity,
      :math:`\beta_2 = 0.999`, and :math:`V_t` is divided by :math:`1 - \beta_2^t`.

    On a tiny LLaMA the first one is ahead of Muon and the later one behind, each at its
    best learning rate ("AdaMuon's two versions" in
    examples/study/pages/ablations.md).

    Args:
        learning_rate: Learning rate, a number or a schedule; 6e-4 for GPT-2 in the
            authors' code, 5e-3 in MuonEq's paper.
        variant: ``"sign"`` or ``"unsigned"``.
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment; None for that of the variant.
        nesterov: Whether to look one step ahead.
        eps: Added to the root of the second moment.
        polar: Kernel that returns the polar factor.
        scaling: ``"rms"`` scales each update to a root mean square of 0.2, `target_rms`
            to another; or a rule of `scale_by_shape`, a number or a function of
            ``(rows, cols)`` for the factor of :math:`\hat{O}_t`.
        weight_decay: Decoupled weight decay of all but vectors, a number or a schedule.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> tx = om.adamuon(3e-3)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Si et al., `AdaMuon <https://arxiv.org/abs/2507.11005>`_, 2025; both versions
        are those of the authors' code. Deviation: Newton-Schulz runs in at least
        float32, as in `muon`.
    """
    signed = variant == "sign"

    usual = b1 if signed else 0.999
    second_moment = optax.scale_by_rms(
        usual if b2 is None else b2,
        eps,
        eps_in_sqrt=False,
        bias_correction=not signed,
    )
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        *([optax.scale_by_sign()] if signed else []),
        orthogonalize(polar),
        in_float32(second_moment),
        matched(scaling),
    )

    return Method(chain)


scale_by_adamuon = direction(adamuon)
