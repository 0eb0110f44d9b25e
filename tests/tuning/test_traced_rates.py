"""Every recipe takes a rate that is traced, so that a sweep is one program."""

import jax
import jax.numpy as jnp
import optax
import pytest
from _registry import TABLE, small
from _walks import walk

import optax_matrix as om

SHAPES = {"kernel": (4, 6), "bias": (4,)}
PARAMS = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in SHAPES.items()}


def step(make, rate, params):
    tx = make(rate)
    return tx.update(params, tx.init(params), params)


def both_rates(name):
    """The rate, and the peak of a schedule for the other leaves: both are traced."""
    cosine = lambda rate: optax.cosine_decay_schedule(rate, 10)
    return lambda rate: small(name)(4 * rate, other_learning_rate=cosine(rate))


OTHERS = {
    "adamw": optax.adamw,
    "lion": optax.lion,
    "contrib.muon": optax.contrib.muon,
    "chain": lambda r: optax.chain(optax.clip_by_global_norm(1.0), om.muon(r)),
    "injected": om.inject_hyperparams(om.muon),
    "partition": lambda rate: optax.partition(
        {"a": om.muon(rate), "b": optax.adamw(rate)},
        {"kernel": "a", "bias": "b"},
    ),
}
MAKES = {name: both_rates(name) for name in TABLE} | OTHERS


@pytest.mark.broad
@walk("name", MAKES)
def test_a_traced_rate_inits_and_updates(name):
    of = lambda rate, params: step(MAKES[name], rate, params)
    updates, _ = jax.eval_shape(of, 0.1, PARAMS)
    assert {k: x.shape for k, x in updates.items()} == SHAPES
