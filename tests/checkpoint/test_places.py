"""`from_portable(places=...)`: an optimizer that was wrapped since, or unwrapped."""

import jax
import numpy as np
import optax
import pytest
from _matrices import ones
from _registry import RECIPES, tree
from _steps import first_update
from _tiers import tiered

import optax_matrix as om
from optax_matrix.checkpoint import from_portable, to_portable

PARAMS = {"k": {"kernel": ones(6, 4)}, "b": ones(4)}
SAME = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)


def _scaled(tx, rate):
    return optax.chain(tx, optax.scale(rate))


def trained(tx, params=PARAMS):
    return first_update(tx, params, params)[1]


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_a_chain_around_takes_over_the_state(name):
    params, tx = tree(0), RECIPES[name](1e-2)
    old = trained(tx, params)
    wrapped = optax.chain(optax.clip_by_global_norm(1.0), tx)
    portable = to_portable(old, params)
    with pytest.raises(ValueError, match="`portable` has no state for"):
        from_portable(portable, wrapped.init(params), params)
    new = from_portable(portable, wrapped.init(params), params, places={"": "1"})
    SAME(new[1], old)
    back = to_portable(new, params)
    SAME(from_portable(back, tx.init(params), params, places={"1": ""}), old)


@pytest.mark.parametrize(
    ("wrap", "place", "inside"),
    [
        (
            lambda tx: optax.MultiSteps(tx, 2),
            "inner_opt_state",
            lambda s: s.inner_opt_state,
        ),
        (
            lambda tx: om.inject_hyperparams(_scaled)(tx=tx, rate=1.0),
            "inner_state/0",
            lambda s: s.inner_state[0],
        ),
        (
            lambda tx: optax.apply_if_finite(tx, 3),
            "inner_state",
            lambda s: s.inner_state,
        ),
        (lambda tx: optax.chain(optax.trace(0.9), tx), "1", lambda s: s[1]),
    ],
    ids=["accumulation", "injected", "if_finite", "outer_momentum"],
)
@pytest.mark.parametrize("tx", [om.muon(0.02), optax.adam(1e-3)], ids=["muon", "adam"])
def test_wrappers_with_state_of_their_own_keep_it(wrap, place, inside, tx):
    old, wrapped = trained(tx), wrap(tx)
    fresh = wrapped.init(PARAMS)
    fill = lambda **kwargs: from_portable(
        to_portable(old, PARAMS), fresh, PARAMS, places={"": place}, **kwargs
    )
    with pytest.raises(ValueError, match="`portable` has no state for"):
        fill()
    new = fill(missing="init")
    SAME(inside(new), old)
    assert inside(fresh) is not inside(new)


def test_with_a_renaming():
    tx, params = om.muon(0.02), {"up": PARAMS["k"], "b": PARAMS["b"]}
    old = trained(tx)
    wrapped = optax.chain(optax.clip(1.0), tx)
    new = from_portable(
        to_portable(old, PARAMS),
        wrapped.init(params),
        params,
        rename={"k": "up"},
        places={"": "1"},
    )
    got, want = to_portable(new, params), to_portable(old, PARAMS)
    for key, x in want.items():
        renamed = key.replace("k/kernel", "up/kernel")
        np.testing.assert_array_equal(got[f"1/{renamed}"], x, err_msg=key)


def test_all_parameters_may_move_into_a_module():
    tx, params = om.muon(0.02), {"model": PARAMS}
    old = trained(tx)
    new = from_portable(
        to_portable(old, PARAMS), tx.init(params), params, rename={"": "model"}
    )
    got, want = to_portable(new, params), to_portable(old, PARAMS)
    sums = lambda tree: sorted(np.sum(x) for x in jax.device_get(tree).values())[-3:]
    SAME(sums(got), sums(want))
    np.testing.assert_array_equal(
        got["inner_state/0/mu/model/k/kernel"], want["inner_state/0/mu/k/kernel"]
    )


def test_another_method_is_refused_in_its_new_place():
    portable = to_portable(trained(om.muon(0.02)), PARAMS)
    wrapped = optax.chain(optax.clip(1.0), om.muoneq(0.02))
    with pytest.raises(ValueError, match="must be a state of muoneq, got one of muon"):
        from_portable(portable, wrapped.init(PARAMS), PARAMS, places={"": "1"})


@pytest.mark.parametrize("places", [{"": "7"}, {"5": "1"}])
def test_a_place_that_concerns_nothing_is_refused(places):
    tx = optax.chain(optax.clip(1.0), om.muon(0.02))
    portable = to_portable(trained(tx), PARAMS)
    loose = {"missing": "init", "unused": "drop"}
    with pytest.raises(ValueError, match="`places` must move state from"):
        from_portable(portable, tx.init(PARAMS), PARAMS, places=places, **loose)
