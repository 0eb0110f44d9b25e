"""Sharded parameters stay sharded, and their losses are those of whole ones."""

import jax
import numpy as np
import optax
import pytest
from _sweeps import BATCHES, PROBLEMS, RATES, make
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

pytestmark = pytest.mark.broad
START, LOSS = PROBLEMS["plain"]
KEPT = {"up": {"kernel": P(None, "x"), "bias": P("x")}, "down": {"kernel": P("x")}}


@pytest.mark.parametrize("memory", [0, 2**30])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("tx", [optax.adamw, make], ids=["adamw", "muoneq"])
def test_shards_stay_and_losses_are_those_of_whole_parameters(tx, kind, memory):
    seen, cpus = [], jax.devices("cpu")[:4]
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=cpus)
    place = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    params = jax.tree.map(place, START(), KEPT)

    def loss(params, x):
        if kind == AxisType.Explicit:
            params = jax.tree.map(lambda w: jax.sharding.reshard(w, P()), params)
        return LOSS(params, x)

    def evaluate(params):
        kernel = params["up"]["kernel"]
        jax.debug.inspect_array_sharding(kernel, callback=seen.append)
        return loss(params, BATCHES[0])

    options = {"rates": RATES, "memory": memory, "widen": 0, "progress": False}
    with jax.set_mesh(mesh):
        found = om.sweep(tx, loss, params, BATCHES, evaluate=evaluate, **options)
    whole = om.sweep(tx, LOSS, START(), BATCHES, **options)
    for rate in RATES:
        np.testing.assert_allclose(found.losses[rate], whole.losses[rate], rtol=1e-4)
    assert {sharding.num_devices for sharding in seen} == {4}
    assert not any(sharding.is_fully_replicated for sharding in seen)
