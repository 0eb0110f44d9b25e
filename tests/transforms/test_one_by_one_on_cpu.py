"""`spo`'s kernels, matrix by matrix and in place: the same values, less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix._thresholds import Thresholds


@pytest.mark.slow
@pytest.mark.parametrize("hold", ["stored", "recovered"])
def test_one_by_one_is_the_same_as_at_once(hold, monkeypatch):
    def path():
        tx = om.spo(optax.adam(0.02), block=4, merge_interval=2, hold=hold)

        @jax.jit
        def run(params):
            def body(carry, t):
                params, state = carry
                updates, state = tx.update(params, state, params)
                params = optax.apply_updates(params, updates)
                # In one step another hand than `spo` moves one of the matrices.
                params = params.at[0, 1, 0, 0].add(jnp.where(t == 2, 1, 0))
                return (params, state), params

            return jax.lax.scan(body, (params, tx.init(params)), jnp.arange(5))

        return run(jnp.asarray(gaussian(2, 3, 6, 9, seed=1), jnp.float32))

    at_once = path()
    monkeypatch.setattr(Thresholds, "primitives_side", 2)
    for ours, theirs in zip(*map(jax.tree.leaves, (path(), at_once)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.broad
def test_a_step_needs_less_than_twice_the_memory_of_its_matrices():
    tx = om.spo(optax.sgd(0.1), block=32)
    params = {"w": jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)}

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    run = jax.jit(step, donate_argnums=(0, 1))
    compiled = run.lower(params, jax.eval_shape(tx.init, params), params).compile()
    # One place for the update, and what few matrices need on the way.
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * 4 * 16 * 256**2
