"""`decay_by_path`: the decay of a recipe, with another rate for some parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones

import optax_matrix as om

PARAMS = {
    "embed": {"embedding": 2 * ones(5, 4)},
    "layers": [{"up": 3 * ones(4, 6), "bias": ones(6)} for _ in range(2)],
}
GRADS = jax.tree.map(
    lambda x: np.arange(x.size, dtype=np.float32).reshape(x.shape), PARAMS
)


@pytest.mark.broad
def test_it_is_the_decay_of_a_recipe():
    """With a schedule of the learning rate, in its second step."""
    rate = optax.linear_schedule(0.1, 0.2, 2)
    own = om.muon(rate, weight_decay=0.3, other_weight_decay=0.0)
    bare = om.muon(rate, weight_decay=0.0, other_weight_decay=0.0)
    tx = optax.chain(bare, om.decay_by_path({"layers/./up": 0.3}, rate))

    def second(tx):
        def run(grads, params):
            state = tx.init(params)
            _, state = tx.update(grads, state, params)
            return tx.update(grads, state, params)[0]

        return jax.device_get(jax.jit(run)(GRADS, PARAMS))

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    jax.tree.map(close, second(tx), second(own))


def test_the_first_expression_counts_and_dtypes_stay():
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    rates = {"embed": 0.5, "bias": 0.0, "": 0.25}

    def run(rate):
        tx = om.decay_by_path({**rates, "": rate}, 0.5)
        return tx.update(GRADS | {"embed": half["embed"]}, tx.init(half), half)[0]

    new = jax.device_get(jax.jit(run)(0.25))
    assert new["embed"]["embedding"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(new["embed"]["embedding"], 2 - 0.5 * 0.5 * 2)
    for layer, grads in zip(new["layers"], GRADS["layers"], strict=True):
        np.testing.assert_array_equal(layer["bias"], grads["bias"])
        np.testing.assert_allclose(layer["up"], grads["up"] - 0.5 * 0.25 * 3)


def test_mistakes():
    with pytest.warns(om.matrices.UnmatchedPatternWarning, match="`rates` of `decay_b"):
        om.decay_by_path({"uq": 2.0}).init(PARAMS)
    with pytest.raises(ValueError, match=r"`rates` must have regular expressions"):
        om.decay_by_path({"[": 2.0})
    with pytest.raises(ValueError, match=r"`rates\['up'\]` must not be negative"):
        om.decay_by_path({"up": -1.0})
    with pytest.raises(ValueError, match="`learning_rate` must"):
        om.decay_by_path({"up": 1.0}, -1.0)
    tx = om.decay_by_path({"up": 1.0})
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        tx.update(GRADS, tx.init(PARAMS))
