"""POET on CUDA, where one predicate covers merges and edits, takes the same steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om


def trained(monkeypatch, platform, **options):
    """Parameters and states of some steps, the fifth after an edit from outside."""

    def choose(*args, default=None, **branches):
        # LAPACK's batches are for the CPU that this runs on.
        return branches.get(platform, branches.get("cpu", default))(*args)

    jax.clear_caches()  # Kernels that are already traced keep their branches.
    with monkeypatch.context() as patch:
        patch.setattr(jax.lax, "platform_dependent", choose)
        tx = om.poet(1e-2, block=8, precision="exact", **options)
        params = {"layers": jax.random.normal(jax.random.key(0), (2, 24, 16))}
        state, update, found = tx.init(params), jax.jit(tx.update), []
        for step in range(7):
            grads = jax.tree.map(lambda x, step=step: jnp.sin(x * (step + 1)), params)
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
            found.append(jax.tree.map(np.asarray, (params, state)))
            if step == 3:
                params = jax.tree.map(lambda x: 1.01 * x, params)
    jax.clear_caches()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"merge_interval": 3, "merge_at": 0.02},
        {"merge_interval": 3},
        {"merge_interval": 2, "hold": "recovered"},
    ],
    ids=str,
)
def test_steps_on_cuda_are_those_of_other_platforms(monkeypatch, options):
    runs = [trained(monkeypatch, p, **options) for p in ("cuda", "cpu")]
    for got, want in zip(*map(jax.tree.leaves, runs), strict=True):
        if got.dtype == np.uint32:
            continue  # Fingerprints of parameters that differ by rounding.
        np.testing.assert_allclose(got, want, atol=5e-5)
