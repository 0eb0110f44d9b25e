"""Momentum: the papers' average under a schedule, in half precision and at extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian
from _registry import TABLE

import optax_matrix as om
from optax_matrix.transforms.first_moments._momentum import MomentumState

STEPS, SHAPE = 8, (3, 5)
GRADS = gaussian(STEPS, *SHAPE, seed=4)


def beta(count):
    """Theorem 3.5 of MuonEq, from the first step on."""
    return 1 - (count + 1.0) ** -0.5


def run(tx, grads, dtype=None):
    grads = np.asarray(grads, dtype)
    state, got = tx.init({"w": grads[0]}), []
    update = jax.jit(tx.update)
    for g in grads:
        updates, state = update({"w": g}, state)
        got.append(np.asarray(updates["w"], np.float64))
    return np.array(got), state


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_it_is_the_average_of_algorithm_1_under_a_schedule(nesterov, bias_correction):
    """MuonEq, Algorithm 1, line 3; a sum of gradients is off by up to 0.34."""
    make = om.inject_hyperparams(om.momentum)
    tx = make(beta, nesterov=nesterov, bias_correction=bias_correction)
    got, _ = run(tx, GRADS)
    m, weight = np.zeros(SHAPE), 0.0
    for t, g in enumerate(GRADS):
        # inject_hyperparams has schedules in float32.
        b = float(beta(np.float32(t)))
        m, weight = b * m + (1 - b) * g, b * weight + 1 - b
        want = m / weight if bias_correction else m
        want = b * want + (1 - b) * g if nesterov else want
        np.testing.assert_allclose(got[t], want, rtol=1e-6)


WITH_MOMENTUM = ("muon", "muoneq", "muon_plus", "normuon", "adamuon", "aro", "splus")


@pytest.mark.daily("muon", "normuon", "adamuon", "aro")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", WITH_MOMENTUM)
def test_recipes_keep_the_average_under_a_schedule(name):
    """Their state holds it, as the paper's recursion gives it."""
    tx = om.inject_hyperparams(TABLE[name])(0.1, b1=beta, weight_decay=0.0)
    params = {"kernel": np.zeros(SHAPE[::-1])}  # Flax stores the transpose.
    state, m = tx.init(params), np.zeros(SHAPE)
    update = jax.jit(tx.update)
    for t, g in enumerate(GRADS[:4]):
        _, state = update({"kernel": g.T}, state, params)
        b = float(beta(np.float32(t)))
        m = b * m + (1 - b) * g
    is_ours = lambda x: isinstance(x, MomentumState)
    (held,) = (x for x in jax.tree.leaves(state, is_leaf=is_ours) if is_ours(x))
    (mu,) = held.mu.values()
    np.testing.assert_allclose(mu[0], m, rtol=1e-6)


def test_the_update_is_float32_and_the_state_rounded():
    got, state = run(om.momentum(0.9), GRADS, jnp.bfloat16)
    narrow = np.asarray(np.asarray(GRADS, jnp.bfloat16), np.float32)
    np.testing.assert_allclose(got[0], 0.1 * narrow[0], rtol=1e-6)
    assert state.mu["w"].dtype == jnp.bfloat16
    _, state = run(om.momentum(0.9, dtype=jnp.float32), GRADS, jnp.bfloat16)
    assert state.mu["w"].dtype == jnp.float32


@pytest.mark.parametrize(("dtype", "size"), [(jnp.float16, 6e4), (jnp.float32, 3e38)])
def test_a_steady_gradient_does_not_overflow(dtype, size):
    """As a sum it does in float16, from 3,300 on."""
    grads = np.full((60, *SHAPE), size) * np.sign(GRADS[0])
    got, state = run(om.momentum(0.95, nesterov=True), grads, dtype)
    np.testing.assert_allclose(got[-1], grads[-1], rtol=0.06)
    assert np.isfinite(state.mu["w"]).all()
