"""Converting a state of `optax.contrib.muon` into one of `muon`."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import optax
from optax.contrib import MuonState

from optax_matrix.matrices.paths import map_named, named_leaves
from optax_matrix.stacks.layout import Layout, make_layout
from optax_matrix.transforms import MomentumState
from optax_matrix.tree.state import OnMatricesState


def muon_state_from_optax(
    optax_state: optax.OptState,
    tx: optax.GradientTransformation,
    params: Any,
    *,
    dimension_numbers: Any = None,
) -> optax.OptState:
    r"""Converts a state of `optax.contrib.muon` into one of `muon`.

    Momenta, Adam's moments and the step counts, including those of schedules, are
    copied. Injected hyperparameters are those of ``tx``.

    The two optimizers then follow the same trajectory, with one exception. optax
    corrects the bias of its average, which in its Nesterov formula changes the weight
    of the gradient in the first steps, by a relative :math:`\beta^t`. After a few
    hundred steps this difference is gone.

    Both optimizers must treat the same leaves as matrices. By default optax takes every
    2-D leaf, embeddings and head included, while `muon` leaves those to AdamW. The
    default ``other`` of `muon` decays ``nu`` with 0.95; optax uses 0.999 and Nesterov,
    which ``other=optax.adamw(rate, 0.9, 0.999, nesterov=True)`` preserves.

    Args:
        optax_state: State of `optax.contrib.muon`, alone or inside `optax.chain`,
            `optax.MultiSteps`, `inject_hyperparams` or a similar wrapper. Its leaves
            are arrays, or the variables that ``nnx.Optimizer.opt_state`` holds.
        tx: Optimizer that continues the run: `muon` (or `muoneq`, `muon_plus`, which
            have the same state), wrapped or not, with an ``other`` that holds one Adam.
        params: The parameters.
        dimension_numbers: The ``dimension_numbers`` of ``tx``.

    Returns:
        A state for ``tx``, with the structure of ``tx.init(params)``.

    Raises:
        ValueError: If ``optax_state`` does not hold exactly one such state, ``tx``
            keeps more than a momentum, or the two disagree on which leaves are
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
    source, adam = (_only(kind, optax_state) for kind in (MuonState, _Adam))
    _check_whole(optax_state)
    fresh = tx.init(params)
    layout = make_layout(params, dimension_numbers)
    _check_groups(layout, _only(OnMatricesState, fresh, "tx"))
    momentum = named_leaves(source.mu)
    others = named_leaves(_only(_Adam, fresh, "tx").mu)
    if set(momentum) != set(layout.views) or set(named_leaves(adam.mu)) != set(others):
        raise ValueError(
            "`tx` must treat the same leaves as matrices as the optimizer of "
            "`optax_state`; pass `dimension_numbers` to `muon`, such as "
            "optax_matrix.matrices.by_path(include='embed|head'), or "
            "`muon_weight_dimension_numbers` to optax.contrib.muon."
        )
    return _continued(
        fresh, layout.stack(momentum), adam, *jax.tree.leaves(source.count)
    )


_Adam = optax.ScaleByAdamState


def _continued(fresh: Any, stacks: dict, adam: Any, count: Any) -> Any:
    """Puts momenta, Adam's moments and step counts into a fresh state."""

    def matrices(state):
        momentum = _only_momentum(state.inner_state)
        kept = jax.tree.map(_in_dtype_of, momentum.mu, stacks)
        own = {MomentumState: lambda old: old._replace(mu=kept)}
        return state._replace(
            inner_state=_replaced(state.inner_state, own),
            after=_replaced(state.after, put),
            other=_replaced(state.other, put),
        )

    def others(state):
        named = [named_leaves(tree) for tree in (adam.mu, adam.nu)]
        mu, nu = (
            map_named(lambda path, old, new=new: _in_dtype_of(old, new[path]), tree)
            for tree, new in zip((state.mu, state.nu), named, strict=True)
        )
        (steps,) = jax.tree.leaves(adam.count)
        return _Adam(_in_dtype_of(state.count, steps), mu, nu)

    def counted(state):
        return state._replace(count=_in_dtype_of(state.count, count))

    def injected(state):
        schedules = {
            name: counted(s) if getattr(s, "_fields", None) == ("count",) else s
            for name, s in state.hyperparams_states.items()
        }
        inner = _replaced(state.inner_state, put)
        state = state._replace(hyperparams_states=schedules, inner_state=inner)
        return counted(state)

    def accumulated(state):
        inner = _replaced(state.inner_opt_state, put)
        steps = _in_dtype_of(state.gradient_step, count)
        return state._replace(gradient_step=steps, inner_opt_state=inner)

    put = {
        OnMatricesState: matrices,
        _Adam: others,
        optax.ScaleByScheduleState: counted,
        optax.InjectStatefulHyperparamsState: injected,
        optax.MultiStepsState: accumulated,
    }
    return _replaced(fresh, put)


def _replaced(state: Any, put: Mapping[type, Callable]) -> Any:
    is_ours = lambda node: type(node) in put
    visit = lambda node: put[type(node)](node) if is_ours(node) else node
    return jax.tree.map(visit, state, is_leaf=is_ours)


def _in_dtype_of(old: Any, new: Any) -> Any:
    return new.astype(old.dtype)


def _all(kind: type, state: Any) -> list:
    is_one = lambda node: isinstance(node, kind)
    return [node for node in jax.tree.leaves(state, is_leaf=is_one) if is_one(node)]


def _only(kind: type, state: Any, name: str = "optax_state") -> Any:
    found = _all(kind, state)
    if len(found) != 1:
        raise ValueError(
            f"`{name}` must hold one {kind.__name__}, got {len(found)}; pass the "
            "state of optax.contrib.muon, and a `tx` made with `muon` whose `other` "
            "holds one Adam."
        )
    return found[0]


def _only_momentum(inner_state: Any) -> Any:
    momenta = _all(MomentumState, inner_state)
    leaves = len(jax.tree.leaves(inner_state))
    if len(momenta) != 1 or len(jax.tree.leaves(momenta)) != leaves:
        raise ValueError(
            "`tx` must keep one momentum per matrix and nothing else, as `muon`, "
            f"`muoneq` and `muon_plus` do, got {len(momenta)} momenta among {leaves} "
            "arrays of state; optax's state has no values for any other arrays."
        )
    return momenta[0]


def _check_groups(layout: Layout, state: OnMatricesState) -> None:
    held, wanted = set(state.manifest), set(layout.groups)
    if held != wanted:
        raise ValueError(
            "`dimension_numbers` must be those of `tx`: they give stacks "
            f"{sorted(wanted)} where `tx` has {sorted(held)}; pass the same value as "
            "to its factory. If `tx` has placement=owners(...), first convert for the "
            "same optimizer without it, then use optax_matrix.from_portable("
            "to_portable(converted, params), tx.init(params), params)."
        )


def _check_whole(state: Any) -> None:
    for accumulation in _all(optax.MultiStepsState, state):
        (mini_step,) = jax.tree.leaves(accumulation.mini_step)
        if not isinstance(mini_step, jax.core.Tracer) and int(mini_step):
            raise ValueError(
                "`optax_state` must not be in the middle of an accumulation, got "
                f"mini_step {int(mini_step)}; convert after it is complete."
            )
