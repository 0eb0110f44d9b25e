"""On Auto axes, where types show no specs, state starts sharded and stays where it is.

So a step after a restart is the program that ran before it.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES, tree
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

SHAPES = {
    "wide": {"kernel": (8, 16)},
    "square": {"kernel": (8, 8), "bias": (8,)},
    "layers": {"kernel": (4, 16, 8)},
}
SPECS = {
    "wide": {"kernel": P("fsdp", "tp")},
    "square": {"kernel": P("fsdp", "tp"), "bias": P()},
    "layers": {"kernel": P(None, "tp", "fsdp")},
}
LARGE = 32  # Entries of a matrix's state that must be split.


@pytest.fixture(scope="module")
def params(cpus):
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (AxisType.Auto,) * 2, devices=cpus)
    sharding = functools.partial(NamedSharding, mesh)
    shardings = jax.tree.map(sharding, SPECS, is_leaf=lambda x: isinstance(x, P))
    return jax.tree.map(jax.device_put, tree(0, shapes=SHAPES), shardings)


def leaves(state):
    return [
        (jax.tree_util.keystr(keys), x)
        for keys, x in jax.tree_util.tree_leaves_with_path(state)
    ]


def split(state):
    return {k: x for k, x in leaves(state) if not x.sharding.is_fully_replicated}


def whole(name, state):
    """Paths of the large float arrays that every device holds whole.

    Blocks of matrices have no axis of a stack but the batch, which is not split here.
    """
    return [
        path
        for path, x in leaves(state)
        if math.prod(x.shape[1:]) >= LARGE and x.sharding.is_fully_replicated
        if jnp.issubdtype(x.dtype, jnp.floating) and "blocks" not in name
    ]


EVERY_DAY = {"muoneq", "soap"}
every_recipe = pytest.mark.parametrize(
    "name",
    [n if n in EVERY_DAY else pytest.param(n, marks=pytest.mark.slow) for n in RECIPES],
)


def trained(tx, params, state):
    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.tree.map(jnp.sin, params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(2):
        params, state = step(params, state)
    assert np.isfinite(sum(map(jnp.sum, jax.tree.leaves(params))))
    return state


@pytest.mark.daily("muoneq", "soap")
@pytest.mark.broad
@every_recipe
def test_state_stays_where_init_puts_it(name, params):
    tx = RECIPES[name](0.01)
    state = tx.init(params)
    found, expected = split(trained(tx, params, state)), split(state)
    assert found.keys() == expected.keys()
    for path, x in found.items():
        assert x.sharding.is_equivalent_to(expected[path].sharding, x.ndim), path


@pytest.mark.broad
@every_recipe
def test_state_of_a_compiled_init_is_split(name, params):
    tx = RECIPES[name](0.01)
    state = jax.jit(tx.init)(params)
    assert not whole(name, state)
    assert not whole(name, trained(tx, params, state))
