"""What holds a state instead of the state: unwrapped, or refused in one sentence."""

import flax.nnx as nnx
import jax
import numpy as np
import optax
import pytest
from _matrices import ones
from _steps import first_update
from flax.training.train_state import TrainState

import optax_matrix as om
from optax_matrix.checkpoint import (
    adopt_state,
    check_restored,
    from_portable,
    reset_state,
    to_portable,
)

SAME = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
TX = om.average_weights(om.diagnostics.monitor(om.soap(1e-2)), 0.9)
LINEN = {"kernel": ones(4, 8), "bias": ones(8)}


def nnx_optimizer(tx, kind=nnx.Optimizer):
    model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
    return kind(model, tx, wrt=nnx.Param), nnx.state(model, nnx.Param)


def train_state(tx):
    state = TrainState.create(apply_fn=lambda: None, params=LINEN, tx=tx)
    return state, state.params


HOLDERS = {
    "nnx.Optimizer": nnx_optimizer,
    "nnx.ModelAndOptimizer": lambda tx: nnx_optimizer(tx, nnx.ModelAndOptimizer),
    "TrainState": train_state,
}
MAPPINGS = {
    "nnx.state": lambda holder: nnx.state(holder),
    "a part of it": lambda holder: nnx.state(holder)["opt_state"],
    "to_pure_dict": lambda holder: nnx.to_pure_dict(nnx.state(holder)),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", HOLDERS)
def test_what_holds_a_state(name):
    holder, params = HOLDERS[name](TX)
    state = holder.opt_state
    portable = to_portable(holder, params)
    SAME(portable, to_portable(state, params))
    SAME(from_portable(portable, state, params), state)
    check_restored(holder)
    assert om.diagnostics.read_monitor(holder) == om.diagnostics.read_monitor(state)
    bases = [om.diagnostics.bases(x, params) for x in (holder, state)]
    assert bases[0].keys() == bases[1].keys()
    SAME(om.evaluation_params(holder, params), om.evaluation_params(state, params))
    for call in (
        lambda: from_portable(portable, holder, params),
        lambda: reset_state(TX, holder, params, True),
    ):
        with pytest.raises(ValueError, match=r"got \w+, which holds it; pass its opt_"):
            call()
    adamw = optax.adamw(1e-2)
    old, _ = HOLDERS[name](adamw)
    tx, options = om.muon(1e-2), {"unused": "drop"}
    SAME(*[adopt_state(s, tx, params, **options) for s in (old, old.opt_state)])


@pytest.mark.broad
@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_in_place_of_named_tuples(name):
    holder, params = nnx_optimizer(TX)
    lost = MAPPINGS[name](holder)
    for call in (
        lambda: to_portable(lost, params),
        lambda: from_portable({}, lost, params),
        lambda: check_restored(lost),
        lambda: adopt_state(lost, TX, params),
        lambda: reset_state(TX, lost, params, True),
        lambda: om.evaluation_params(lost, params),
        lambda: om.diagnostics.read_monitor(lost),
        lambda: om.diagnostics.bases(lost, params),
    ):
        with pytest.raises(
            ValueError, match=r"got mappings .*pass optimizer.opt_state"
        ):
            call()


def test_a_state_that_has_one_of_this_name_is_itself():
    """As that of optax's SAM."""
    tx = optax.contrib.sam(om.muon(1e-2), optax.sgd(1e-2), sync_period=2)
    state = tx.init(LINEN)
    assert hasattr(state, "opt_state")
    SAME(from_portable(to_portable(state, LINEN), tx.init(LINEN), LINEN), state)


def test_swapped_arguments_are_told():
    state = om.muon(1e-2).init(LINEN)
    portable = to_portable(state, LINEN)
    nested = {"up": LINEN}
    with pytest.raises(ValueError, match=r"`params` .* got a state; write to_portable"):
        to_portable(LINEN, state)
    for swapped in ((portable, LINEN, state), (LINEN, portable, state)):
        with pytest.raises(ValueError, match="`params` must be the parameters, got a"):
            from_portable(*swapped)
    for swapped in ((state, portable, LINEN), (state, LINEN, portable)):
        with pytest.raises(ValueError, match=r"`portable` must be what .*, got OnMatr"):
            from_portable(*swapped)
    with pytest.raises(
        ValueError, match=r"`portable` must be what .*a tree under 'up'"
    ):
        from_portable(nested, state, portable)
    with pytest.raises(ValueError, match="`params` must be the parameters that the"):
        from_portable(LINEN, state, portable)


def test_a_state_with_other_names_throughout_is_no_fresh_state():
    """Whoever followed the hints of the errors would train on with zeros."""
    fresh = jax.jit(om.muon(1e-2).init)(LINEN)
    portable = {f"opt_state/{k}": x for k, x in to_portable(fresh, LINEN).items()}
    loose = {"missing": "init", "unused": "drop"}
    with pytest.raises(
        ValueError, match=r"under 'opt_state'; pass places=\{'opt_state"
    ):
        from_portable(portable, fresh, LINEN)
    with pytest.raises(ValueError, match=r"must hold some of what `state` keeps, but"):
        from_portable(portable, fresh, LINEN, **loose)
    from_portable(portable, fresh, LINEN, places={"opt_state": ""})


def test_a_longer_vocabulary_is_padded_in_the_portable_form():
    tx = om.muon(1e-2)
    old, new = ({"up": {"kernel": ones(4, n)}} for n in (6, 8))
    portable = to_portable(first_update(tx, old, old)[1], old)
    fresh = jax.jit(tx.init)(new)
    with pytest.raises(ValueError, match="pad or cut the array to that shape"):
        from_portable(portable, fresh, new)
    wanted = to_portable(fresh, new)
    for key, x in portable.items():
        pairs = zip(np.shape(x), np.shape(wanted[key]), strict=True)
        if more := [(0, new - old) for old, new in pairs]:
            portable[key] = np.pad(x, more)
    state = from_portable(portable, fresh, new)
    (mu,) = state.inner_state[0].mu.values()
    assert mu.shape == (1, 8, 4)
    np.testing.assert_array_equal(np.abs(mu).sum((0, 2)) > 0, np.arange(8) < 6)
