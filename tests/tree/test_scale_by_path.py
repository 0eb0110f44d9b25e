"""`scale_by_path`: which updates are multiplied, and what a factor means at the end."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _raised import raise_warnings

import optax_matrix as om

PARAMS = {
    "embed": {"embedding": ones(5, 4)},
    "layers": [{"up": ones(4, 6), "bias": ones(6)} for _ in range(2)],
}
GRADS = jax.tree.map(
    lambda x: np.arange(x.size, dtype=np.float32).reshape(x.shape), PARAMS
)


@pytest.mark.broad
def test_a_factor_is_one_of_the_learning_rate():
    """The weight decay and a schedule included."""
    rate = optax.linear_schedule(0.1, 0.2, 2)
    make = lambda rate: om.muon(rate, weight_decay=0.3, other_learning_rate=rate)
    factors = {"layers/0": 0.5, "layers|embed": 3.0}
    tx = optax.chain(make(rate), om.scale_by_path(factors))
    scaled = {f: make(lambda count, f=f: f * rate(count)) for f in (0.5, 3.0)}
    state = tx.init(PARAMS)
    states = {f: t.init(PARAMS) for f, t in scaled.items()}
    for _ in range(2):
        new, state = jax.jit(tx.update)(GRADS, state, PARAMS)
        each = {}
        for f in scaled:
            each[f], states[f] = jax.jit(scaled[f].update)(GRADS, states[f], PARAMS)
        pairs = [(new["layers"][0], each[0.5]["layers"][0])]
        pairs += [(new["layers"][1], each[3.0]["layers"][1])]
        pairs += [(new["embed"], each[3.0]["embed"])]
        for found, expected in pairs:
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)
            jax.tree.map(close, found, expected)


def test_dtypes_traced_factors_and_others():
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), GRADS)
    run = jax.jit(lambda f: om.scale_by_path({"up$": f}).update(half, ())[0])
    new = run(2.0)
    assert new["layers"][0]["up"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(new["layers"][0]["up"], 2 * half["layers"][0]["up"])
    np.testing.assert_array_equal(new["layers"][0]["bias"], half["layers"][0]["bias"])


def test_mistakes():
    with pytest.warns(om.matrices.UnmatchedPatternWarning, match="'uq', which matches"):
        om.scale_by_path({"uq": 2.0}).init(PARAMS)
    with warnings.catch_warnings():
        raise_warnings()
        om.scale_by_path({"up": 2.0}).init(PARAMS)
    with pytest.raises(ValueError, match=r"regular expressions, got '\['"):
        om.scale_by_path({"[": 2.0})
    with pytest.raises(ValueError, match=r"`factors\['up'\]` must not be negative"):
        om.scale_by_path({"up": -1.0})
