"""The first block of a chain need not read gradients for their largest entries."""

import jax
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix._surroundings.peaks import peak_of
from optax_matrix.linalg import scale, sinkhorn

PARAMS = {name: np.zeros((5, 8), np.float32) for name in "abc"}
BAD = gaussian(5, 8).astype(np.float32)
BAD[1, 2] = np.nan
GRADS = {"a": np.float32(3 * gaussian(5, 8)), "b": BAD, "c": np.zeros_like(BAD)}


@pytest.mark.parametrize("nonfinite", ["skip", "zero", "propagate"])
def test_a_chain_knows_the_largest_entries_of_its_gradients(nonfinite):
    seen = []

    def look(updates, params=None):
        del params
        for x in jax.tree.leaves(updates):
            assert peak_of(x + 0) is None  # Of no other array.
            seen.append((x, peak_of(x)))
        return updates

    tx = om.on_matrices(optax.stateless(look), nonfinite=nonfinite)
    stack, peak = jax.jit(lambda g: (tx.update(g, tx.init(g)), seen[-1])[1])(GRADS)
    assert peak.shape == (3, 1, 1)
    np.testing.assert_array_equal(np.abs(stack).max((-2, -1), keepdims=True), peak)
    assert sorted(np.ravel(peak))[:2] == [0, 0]


@pytest.mark.parametrize("name", ["sinkgd", "racs"])
def test_no_largest_entry_is_looked_for_twice(name, monkeypatch):
    tx = getattr(om, f"scale_by_{name}")()
    state, looked = jax.jit(tx.init)(GRADS), []
    run = lambda: jax.jit(lambda g: tx.update(g, state)[0])(GRADS)
    want = run()
    largest = scale.largest_entry
    monkeypatch.setattr(
        scale, "largest_entry", lambda x: looked.append(x.shape) or largest(x)
    )
    jax.tree.map(np.testing.assert_array_equal, run(), want)
    assert not [shape for shape in looked if shape[-2:] in ((5, 8), (8, 5))]


def test_a_known_peak_changes_nothing():
    x = np.asarray(gaussian(2, 5, 8) * np.array([[[1e-20]], [[1e20]]]), np.float32)
    known = lambda x: sinkhorn(x, peak=scale.largest_entry(x))
    x[1, 3] = 0
    np.testing.assert_array_equal(jax.jit(known)(x), jax.jit(sinkhorn)(x))
    np.testing.assert_array_equal(jax.jit(known)(np.zeros_like(x)), 0)
