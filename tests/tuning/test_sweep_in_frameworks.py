"""A sweep trains what a plain loop trains: NNX, Linen, Equinox, plain trees."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from _sweeps import (
    BATCHES,
    HELD_OUT,
    PROBLEMS,
    RATES,
    distance,
    loop,
    make,
)
from flax import linen as nn, nnx

import optax_matrix as om

pytestmark = pytest.mark.broad


def swept(kind, **options):
    start, loss = PROBLEMS[kind]
    options = {"rates": RATES, "widen": 0, "progress": False} | options
    return om.sweep(make, loss, start(), BATCHES, **options)


def arrays(model):
    """Its numbers, counters of keys among them, as they are now."""
    leaves = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.array(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


@pytest.mark.parametrize("kind", PROBLEMS)
def test_one_after_the_other_has_the_bits_of_a_loop(kind):
    found = swept(kind, memory=0)
    assert not found.together
    for rate in RATES:
        losses, _ = loop(kind)(rate)
        np.testing.assert_array_equal(found.losses[rate], [losses])


@pytest.mark.parametrize("kind", PROBLEMS)
def test_together_is_the_loops_up_to_rounding_and_the_same_choice(kind):
    start, loss = PROBLEMS[kind]
    model = start()
    before = arrays(model)
    of = lambda model: loss(model, HELD_OUT)
    options = {"rates": RATES, "widen": 0, "progress": False, "evaluate": of}
    found = om.sweep(make, loss, model, BATCHES, **options)
    assert found.together
    finals = []
    for rate in RATES:
        losses, trained = loop(kind)(rate)
        np.testing.assert_allclose(found.losses[rate], [losses], rtol=1e-4)
        finals.append(float(of(trained)))
    np.testing.assert_allclose(np.ravel([*found.finals.values()]), finals, rtol=1e-4)
    assert found.best == RATES[int(np.argmin(finals))]
    for old, new in zip(before, arrays(model), strict=True):
        np.testing.assert_array_equal(old, new)


@nnx.jit
def nnx_step(model, optimizer, batch):
    value, grads = nnx.value_and_grad(PROBLEMS["nnx"][1])(model, batch)
    optimizer.update(model, grads)
    return value


def equinox_step(tx, model, state, batch):
    value, grads = eqx.filter_value_and_grad(PROBLEMS["equinox"][1])(model, batch)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, state = tx.update(grads, state, params)
    return eqx.apply_updates(model, updates), state, value


@pytest.mark.parametrize(
    ("kind", "step"), [("nnx", nnx_step), ("equinox", equinox_step)], ids=["nnx", "eqx"]
)
@pytest.mark.parametrize("memory", [0, 2**30])
def test_steps_of_users_and_seeds(kind, step, memory):
    """The step of an NNX model changes model and optimizer in place, as in any loop."""
    start, seeds, some = PROBLEMS[kind][0], (3, 5), RATES[:2]
    batches = lambda seed: BATCHES * (1 + seed / 10)
    options = {"step": step, "seeds": seeds, "memory": memory, "progress": False}
    found = om.sweep(make, None, start, batches, rates=some, widen=0, **options)
    for rate in some:
        for seed, got in zip(seeds, found.losses[rate], strict=True):
            losses, _ = loop(kind)(rate, seed, batches(seed))
            np.testing.assert_allclose(got, losses, rtol=1e-4 if memory else 1e-6)


def test_linens_statistics_move_in_a_step_of_the_users():
    """The state of the optimizer is that of "params" alone."""
    model = nn.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), BATCHES[0])

    def loss(params, rest, x):
        out, rest = model.apply(params | rest, x, mutable=["batch_stats"])
        return distance(out, x), rest

    def step(tx, variables, state, batch):
        params = {"params": variables["params"]}
        rest = {"batch_stats": variables["batch_stats"]}
        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(
            params, rest, batch
        )
        updates, state = tx.update(grads["params"], state, params["params"])
        new = optax.apply_updates(params["params"], updates)
        return {"params": new} | rest, state, value

    mean = lambda variables: variables["batch_stats"]["mean"].sum()
    options = {"step": step, "evaluate": mean, "widen": 0, "progress": False}
    found = om.sweep(optax.adamw, None, variables, BATCHES, rates=RATES, **options)
    want = 0.0
    for x in BATCHES:
        want = 0.99 * want + 0.01 * x.mean(0).sum()
    np.testing.assert_allclose(found.finals[RATES[0]], [want], rtol=1e-4)


def test_a_model_from_outside_that_changes_in_place_gets_a_sentence():
    outer, loss = PROBLEMS["nnx"][0](), PROBLEMS["nnx"][1]
    bad = lambda model, x: loss(model, x) + loss(outer, x)
    with pytest.raises(ValueError, match="changes a model in place that it was not"):
        om.sweep(make, bad, PROBLEMS["nnx"][0](), BATCHES, rates=RATES)
