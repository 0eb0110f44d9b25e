"""The weights for evaluation, from a state with averages of them."""

import functools
from typing import Any

import optax

from optax_matrix._paths import flatten_named, named_leaves
from optax_matrix.tree.holders import check_tuples
from optax_matrix.tree.state import OnMatricesState
from optax_matrix.weights._average_weights import AverageWeightsState
from optax_matrix.weights._outer import OuterState
from optax_matrix.weights._parts_of_states import ROUNDED, nodes

_AVERAGES = AverageWeightsState, optax.contrib.ScheduleFreeState


def evaluation_params(state: Any, params: Any) -> Any:
    """The weights for evaluation: averages that the state of an optimizer holds.

    With `outer` they are the weights after the last outer step.

    Args:
        state: State of an optimizer that contains `average_weights`, `outer` or
            `optax.contrib.schedule_free` at any depth: inside of chains,
            `optax.MultiSteps`, `optax.partition`. An average of the weights that
            `outer` makes comes before them.
        params: The parameters that are trained.

    Returns:
        The parameters with the averages in place of the leaves that have one, in their
        dtypes and shardings.

    Raises:
        ValueError: If the state has no averages, or averages of averages; if
            `optax.contrib.schedule_free` is around `poet`, `oft`, `hyperball`,
            `stochastic_rounding` or `store_remainders`. Their updates give weights of a
            certain norm or of fewer bits only if they are added to the weights that the
            optimizer got, and schedule-free adds them to other weights.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> base = om.muon(0.02, b1=0.0)
        >>> tx = optax.chain(
        ...     optax.clip_by_global_norm(1.0),
        ...     optax.contrib.schedule_free(base, learning_rate=0.02),
        ... )
        >>> params = {"kernel": jnp.eye(4, 8)}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> params = optax.apply_updates(params, updates)
        >>> om.evaluation_params(state, params)["kernel"].shape
        (4, 8)
    """
    found = nodes(state, *_AVERAGES, OuterState)
    if not found:
        check_tuples(state, "state")
        raise ValueError(
            "`state` must have averages of the weights; put om.average_weights, "
            "om.outer or optax.contrib.schedule_free around the optimizer."
        )
    return functools.reduce(_averaged, found, params)


def _averaged(params: Any, node: Any) -> Any:
    """Parameters with the averages of one node; other leaves are unchanged."""
    is_free = isinstance(node, optax.contrib.ScheduleFreeState)
    inner = node.base_optimizer_state if is_free else node.inner_state
    if nodes(inner, *_AVERAGES):
        raise ValueError(
            "`state` must not have averages of averages; take one of "
            "om.average_weights and optax.contrib.schedule_free."
        )
    if is_free:
        _refuse_finished(inner)
    leaves, rebuild = flatten_named(params)
    field = {OuterState: "slow", AverageWeightsState: "average"}.get(type(node), "z")
    held = named_leaves(getattr(node, field))
    if unknown := held.keys() - leaves.keys():
        raise ValueError(
            f"`params` must be those of `state`, which has {min(unknown)!r}; pass the "
            "parameters that were trained."
        )
    if is_free:
        own = {path: leaves[path] for path in held}
        held = optax.contrib.schedule_free_eval_params(node._replace(z=held), own)
    return rebuild(leaves | {p: x.astype(leaves[p].dtype) for p, x in held.items()})


def _refuse_finished(inner: Any) -> None:
    """Raises if updates inside of schedule-free fit only the weights they got."""
    names = [ROUNDED[type(x)] for x in nodes(inner, *ROUNDED)]
    for state in nodes(inner, OnMatricesState):
        names += {"poet", "oft", "hyperball", "muonh"} & state.method.keys()
    if names:
        raise ValueError(
            f"optax.contrib.schedule_free must not be around {names[0]}, whose updates "
            "fit only the weights that it gets; take om.average_weights in its place, "
            "or, for bfloat16 weights, put om.weights.store_remainders around it."
        )
