"""MuonH: Muon on the sphere of the initial norms, with AdamH for the head."""

from functools import partial
from typing import Any, Unpack

import optax

from optax_matrix._arguments import Decay, Dtype, Kernel, Positive, Rate
from optax_matrix.linalg import YOU, newton_schulz
from optax_matrix.recipes._method import Method, decayed_others, rate_of_others
from optax_matrix.recipes._recipe import Common, recipe
from optax_matrix.transforms import finish_step, momentum, orthogonalize
from optax_matrix.tree.ends import heads_apart

_QUINTIC = partial(newton_schulz, coefficients=YOU)
_OTHERS = 3 / 13  # Marin's rate of Adam, relative to that of MuonH.


@recipe
def muonh(
    learning_rate: Rate,
    *,
    b1: Decay = 0.95,
    nesterov: bool = True,
    polar: Kernel | None = None,
    eps: Positive = 1e-8,
    weight_decay: Rate = 0.0,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""MuonH for matrices, AdamH for the head, Adam(0.9, 0.95) for the rest.

    .. math::
        M_t = \beta M_{t-1} + (1 - \beta) G_t, \qquad
        O_t = \mathrm{polar}(\beta M_t + (1 - \beta) G_t), \\
        W_{t+1} = R \, N(W_t - \eta R \, N(O_t)), \qquad N(X) = X / \|X\|_F,
        \quad R = \|W_0\|_F

    so :math:`\eta` is the length of a step relative to the weights, whose norm does not
    change. Without Nesterov momentum the polar factor is that of :math:`M_t`. Heads,
    which are known by name, make the same step with Adam's direction in place of
    :math:`O_t`, at the same rate, and keep their current norm. The state is one
    momentum per matrix. It is `hyperball` around `muon`, and around Adam of the head.

    There is no ``scale_by_muonh``: updates are finished steps, which nothing may
    rescale. Matrices and heads that start at zero stay there; `init` warns of them.
    Where a matrix has no gradient, a step fades as in `muon`, and leads along a chord
    of the sphere; `hyperball` goes on with steps of full length.

    Args:
        learning_rate: Relative length :math:`\eta` of the steps of matrices and head, a
            number or a schedule. Marin's law for models of mixtures of experts is
            ``18.31 * tokens**-0.395 * width**-0.15 * batch**0.5``, at most 0.05, with
            batches of sequences of 4096 tokens.
        b1: Decay rate :math:`\beta` of the momentum.
        nesterov: Whether to look one step ahead.
        polar: Kernel that returns the polar factor; None for five steps of
            `linalg.newton_schulz` with the coefficients ``linalg.YOU``, which Levanter
            calls "quintic".
        eps: Adam's epsilon.
        weight_decay: Decoupled weight decay of the other leaves that are no vectors,
            a number or a schedule; matrices and heads do not decay.
        mu_dtype: Dtype of the momenta; None for that of the parameter.
        **common: Keywords of every recipe, see `optax_matrix.recipes`. With ``other``
            the head belongs to that optimizer.

    Returns:
        An optimizer of the whole tree. Without ``other_learning_rate``, that of Adam is
        3/13 of ``learning_rate``, as in Marin.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> tx = om.muonh(0.01)
        >>> params = {"kernel": jnp.eye(4, 8), "lm_head": {"kernel": jnp.ones((4, 9))}}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> new = optax.apply_updates(params, updates)
        >>> sizes = jax.tree.map(lambda w: float(jnp.linalg.norm(w).round(2)), new)
        >>> sizes["kernel"], sizes["lm_head"]["kernel"]
        (2.0, 6.0)

    References:
        Wen et al., `Hyperball <https://arxiv.org/abs/2606.16899>`_, 2026, as
        `Marin <https://github.com/marin-community/marin>`_ and its Levanter run it
        (``muonh.py``, ``adamh.py``; law and ratio of rates: issue 5951). Deviations:
        matrices keep the norm of their initialization, there that before each step;
        Newton-Schulz has the precision of `muon`'s.
    """
    chain = optax.chain(
        momentum(b1, nesterov=nesterov, dtype=mu_dtype),
        orthogonalize(polar or _QUINTIC),
        optax.scale(-1.0),
        finish_step("hyperball", learning_rate),
    )

    of_heads = finish_step("hyperball", learning_rate, radius="current")
    heads = optax.chain(optax.scale(-1.0), of_heads)

    def other(params: Any) -> optax.GradientTransformation:
        given: Any = common.get("other_learning_rate")
        rate = rate_of_others(learning_rate, _OTHERS, given)
        rest = optax.chain(
            decayed_others(weight_decay, common, params),
            optax.scale_by_learning_rate(rate),
        )
        return optax.chain(
            optax.scale_by_adam(0.9, 0.95, eps, mu_dtype=mu_dtype),
            heads_apart(heads, rest, params),
        )

    return Method(chain, other=other, is_step=True)
