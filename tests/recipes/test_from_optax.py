"""`muon` continues a run of `optax.contrib.muon`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_matrix import recipes

pytestmark = pytest.mark.broad

KERNELS = {"kernel": (6, 4), "bias": (4,)}
BEFORE, AFTER = 150, 50


@pytest.fixture(scope="module")
def runs():
    """optax for 200 steps, and ours from what optax had after 150."""
    rng = np.random.default_rng(0)
    params = {
        k: jnp.asarray(rng.standard_normal(s), "float32") for k, s in KERNELS.items()
    }
    noise = {
        k: rng.standard_normal((BEFORE + AFTER, *s)).astype("float32")
        for k, s in KERNELS.items()
    }
    rate = optax.cosine_decay_schedule(0.02, 200)
    theirs = optax.contrib.muon(rate, eps=1e-8, adam_b1=0.9, adam_b2=0.999)

    def scan(tx, params, state, noise):
        @jax.jit
        def run(params, state, noise):
            def body(carry, noise_t):
                params, state = carry
                grads = jax.tree.map(lambda p, n: 0.3 * p + n, params, noise_t)
                updates, state = tx.update(grads, state, params)
                params = optax.apply_updates(params, updates)
                return (params, state), params

            return jax.lax.scan(body, (params, state), noise)

        return run(params, state, noise)

    first = jax.tree.map(lambda n: n[:BEFORE], noise)
    rest = jax.tree.map(lambda n: n[BEFORE:], noise)
    (middle, state), _ = scan(theirs, params, theirs.init(params), first)
    _, their_path = scan(theirs, middle, state, rest)

    ours = recipes.muon(
        rate,
        other=optax.adamw(rate, 0.9, 0.999, weight_decay=0.0, nesterov=True),
    )
    converted = recipes.muon_state_from_optax(state, ours, middle)
    _, our_path = scan(ours, middle, converted, rest)
    _, fresh_path = scan(ours, middle, ours.init(middle), rest)
    return {
        "params": middle,
        "state": state,
        "converted": converted,
        "theirs": jax.tree.map(np.asarray, their_path),
        "ours": jax.tree.map(np.asarray, our_path),
        "fresh": jax.tree.map(np.asarray, fresh_path),
    }


def test_converted_state_follows_optax(runs):
    # What is left of optax's bias correction is 0.95**150 = 5e-4 of a direction, and
    # less at every step; 50 steps of size 0.02 * 1 make at most 5e-4 of it.
    gap = np.abs(runs["ours"]["kernel"] - runs["theirs"]["kernel"]).max()
    assert gap < 5e-4
    np.testing.assert_allclose(runs["ours"]["bias"], runs["theirs"]["bias"], atol=1e-6)


def test_a_fresh_state_does_not(runs):
    assert np.abs(runs["fresh"]["kernel"] - runs["theirs"]["kernel"]).max() > 0.02
    assert np.abs(runs["fresh"]["bias"] - runs["theirs"]["bias"]).max() > 1e-3


def test_counts_are_taken_over(runs):
    counts = [c for _, c in optax.tree.get_all_with_path(runs["converted"], "count")]
    assert len(counts) == 3  # Adam and two schedules
    assert {int(c) for c in counts} == {BEFORE}


def test_other_leaves_must_agree():
    params = {"kernel": jnp.ones((4, 3)), "embedding": {"kernel": jnp.ones((5, 3))}}
    state = optax.contrib.muon(0.1).init(params)
    with pytest.raises(ValueError, match="same leaves as matrices"):
        recipes.muon_state_from_optax(state, recipes.muon(0.1), params)


def test_another_state_is_refused(runs):
    adam = optax.adam(0.1).init(runs["params"])
    with pytest.raises(ValueError, match="one MuonState, got 0"):
        recipes.muon_state_from_optax(adam, recipes.muon(0.1), runs["params"])
