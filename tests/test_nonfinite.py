"""One policy for gradients that are not finite, the same for every recipe."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _registry import RECIPES
from _tiers import KINDS, QUICK
from jax.experimental import checkify

import optax_matrix as om

SHAPE, STEPS, BAD_STEP = (6, 4), 4, 2
PARAMS = {
    "bad": {"kernel": np.full(SHAPE, 0.5, np.float32)},
    "good": {"kernel": np.full(SHAPE, 0.5, np.float32)},  # In the same stack.
}


def tier(name):
    if name in QUICK:
        return name
    marks = pytest.mark.broad if name in KINDS else pytest.mark.slow
    return pytest.param(name, marks=marks)


recipes = pytest.mark.parametrize("name", [tier(name) for name in RECIPES])


def stream(value=None):
    """Gradients; with a value, one entry of one of them is that."""
    rng = np.random.default_rng(5)
    grads = [
        {k: {"kernel": rng.standard_normal(SHAPE)} for k in PARAMS}
        for _ in range(STEPS)
    ]
    if value is not None:
        grads[BAD_STEP]["bad"]["kernel"][1, 2] = value
    return jax.tree.map(np.float32, grads)


@functools.cache
def make(name, nonfinite):
    tx = RECIPES[name](0.01, weight_decay=0.0, nonfinite=nonfinite)
    return tx, jax.jit(lambda g, s: tx.update(g, s, PARAMS))


def run(name, grads, nonfinite=None):
    """Updates and portable states, before the first step included."""
    tx, update = make(name, nonfinite)
    state, updates, states = tx.init(PARAMS), [], []
    for g in grads:
        new, state = update(g, state)
        updates.append(jax.tree.map(np.asarray, new))
        states.append(om.to_portable(state, PARAMS))
    return updates, states


def of(matrix, state):
    return {k: np.asarray(v) for k, v in state.items() if f"{matrix}/kernel" in k}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for key in want:
        np.testing.assert_array_equal(got[key], want[key], err_msg=key)


@pytest.mark.broad
@recipes
def test_by_default_the_update_is_nan_and_the_state_stays(name):
    updates, states = run(name, stream(jnp.nan))
    wanted, held = run(name, stream())
    for t in range(STEPS):
        np.testing.assert_array_equal(
            updates[t]["good"]["kernel"], wanted[t]["good"]["kernel"]
        )
        assert_same(of("good", states[t]), of("good", held[t]))
    assert np.isnan(updates[BAD_STEP]["bad"]["kernel"]).all()
    assert_same(of("bad", states[BAD_STEP]), of("bad", states[BAD_STEP - 1]))
    assert np.isfinite(updates[-1]["bad"]["kernel"]).all()


@recipes
def test_zero_is_a_gradient_of_zero(name):
    """And of infinity, too."""
    grads, zeros = stream(-jnp.inf), stream()
    zeros[BAD_STEP]["bad"] = jax.tree.map(jnp.zeros_like, zeros[BAD_STEP]["bad"])
    got, states = run(name, grads, "zero")
    want, wanted = run(name, zeros, "zero")
    for t in range(STEPS):
        jax.tree.map(np.testing.assert_array_equal, got[t], want[t])
        assert_same(states[t], wanted[t])


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muon", pytest.param("aro", marks=pytest.mark.broad)])
def test_skip_neither_moves_nor_learns(name):
    updates, states = run(name, stream(jnp.nan), "skip")
    assert not updates[BAD_STEP]["bad"]["kernel"].any()
    assert_same(of("bad", states[BAD_STEP]), of("bad", states[BAD_STEP - 1]))


@recipes
def test_skip_is_without_weight_decay(name):
    tx = RECIPES[name](0.01, weight_decay=0.1, nonfinite="skip")
    grads = stream(jnp.nan)[BAD_STEP]
    new, _ = jax.jit(tx.update)(grads, tx.init(PARAMS), PARAMS)
    assert not new["bad"]["kernel"].any()
    assert new["good"]["kernel"].any()


def test_raise_names_the_leaf():
    tx = RECIPES["muon"](0.01, nonfinite="raise")
    update = checkify.checkify(jax.jit(lambda g, s: tx.update(g, s, PARAMS)))
    state = tx.init(PARAMS)
    fine, _ = update(stream()[0], state)
    fine.throw()
    error, _ = update(stream(jnp.nan)[BAD_STEP], state)
    with pytest.raises(checkify.JaxRuntimeError, match="gradient of 'bad/kernel' must"):
        error.throw()


@pytest.mark.broad
def test_raise_names_a_leaf_with_braces():
    tx = om.on_matrices(om.match_rms(), nonfinite="raise")
    params = {"{0}": {"kernel": jnp.ones((4, 6))}}
    update = checkify.checkify(lambda g, s: tx.update(g, s, params))
    bad = jax.tree.map(lambda x: x.at[0, 0].set(jnp.nan), params)
    error, _ = update(bad, tx.init(params))
    with pytest.raises(checkify.JaxRuntimeError, match=r"of '\{0\}/kernel' must be"):
        error.throw()


def test_wrong_words_are_refused():
    with pytest.raises(ValueError, match="`nonfinite` must be one of 'propagate'"):
        om.on_matrices(om.match_rms(), nonfinite="ignore")
    with pytest.raises(ValueError, match="`nonfinite` must be one of"):
        om.muon(0.1, nonfinite="ignore")
