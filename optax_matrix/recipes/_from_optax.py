"""Continue with `muon` where `optax.contrib.muon` stopped."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from optax.contrib import MuonState


def muon_state_from_optax(
    optax_state: optax.OptState,
    tx: optax.GradientTransformation,
    params: Any,
    *,
    b1: ArrayLike = 0.95,
) -> optax.OptState:
    r"""Turns a state of `optax.contrib.muon` into one of `muon`.

    optax averages gradients, :math:`\mu_t = \beta \mu_{t-1} + (1 - \beta) G_t`; `muon`
    sums them, so that its momentum is :math:`\mu_t / (1 - \beta)`. Adam's moments and
    all step counts are taken over as they are.

    The two then follow the same trajectory but for one thing: optax corrects the bias
    of its average, and in its Nesterov line that gives the gradient another weight in
    the first steps (by a relative :math:`\beta^t`). After a few hundred steps nothing
    is left of it.

    Args:
        optax_state: State of `optax.contrib.muon`, alone or inside `optax.chain`.
        tx: The `muon` that is to continue, with an ``other`` that holds one Adam. (The
            default decays ``nu`` with 0.95; optax's has 0.999 and Nesterov, which
            ``other=optax.adamw(rate, 0.9, 0.999, nesterov=True)`` keeps.)
        params: The parameters, for which both optimizers have the same leaves as
            matrices: optax's default takes every 2-D leaf, embeddings and head
            included, ours leaves those to AdamW.
        b1: Decay rate of the momentum, equal in both.

    Returns:
        A state for ``tx``.

    Raises:
        ValueError: If there is no such state, or the two disagree on which leaves are
            matrices.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> state = optax.contrib.muon(0.02).init(params)
        >>> tx = om.muon(0.02)
        >>> state = om.muon_state_from_optax(state, tx, params)
        >>> updates, state = tx.update(params, state, params)
    """
    theirs = _find(optax_state, MuonState)
    adam = _find(optax_state, optax.ScaleByAdamState)
    fresh = tx.init(params)
    ours = _find(fresh, optax.ScaleByAdamState)
    if jax.tree.structure(ours.mu) != jax.tree.structure(adam.mu):
        raise ValueError(
            "`tx` must treat the same leaves as matrices as the optimizer of "
            "`optax_state`; pass `dimension_numbers` to `muon`, such as "
            "optax_matrix.layout.by_path(include='embed|head'), or "
            "`muon_weight_dimension_numbers` to optax.contrib.muon."
        )
    # The momentum starts at zero, so one update with the sum as gradient stores it.
    sums = jax.tree.map(lambda mu: mu / (1 - b1), theirs.mu)
    gradients = jax.tree.map(
        lambda p, total: jnp.zeros_like(p) if _absent(total) else total,
        params,
        sums,
    )
    _, state = tx.update(gradients, fresh, params)
    return optax.tree.set(state, count=theirs.count, mu=adam.mu, nu=adam.nu)


def _absent(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _find(state: Any, kind: type) -> Any:
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    found = [node for node in nodes if isinstance(node, kind)]
    if len(found) != 1:
        raise ValueError(
            f"`optax_state` must hold one {kind.__name__}, got {len(found)}; pass the "
            "state of optax.contrib.muon, and a `tx` whose `other` holds one Adam."
        )
    return found[0]
