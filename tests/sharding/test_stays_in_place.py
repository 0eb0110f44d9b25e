"""On Auto axes, where types show no specs, state starts sharded and stays where it is.

So a step compiles once, and a step after a restart is the program that ran before it.
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


def places(state):
    return {jax.tree_util.keystr(keys): x.sharding for keys, x in leaves(state)}


def leaves(state):
    return jax.tree_util.tree_leaves_with_path(state)


def whole(name, state):
    """Paths of the large float arrays that every device holds whole.

    Blocks of matrices have no axis of a stack but the batch, which is not split here.
    """
    return [
        jax.tree_util.keystr(keys)
        for keys, x in leaves(state)
        if math.prod(x.shape[1:]) >= LARGE and x.sharding.is_fully_replicated
        if jnp.issubdtype(x.dtype, jnp.floating) and "blocks" not in name
    ]


EVERY_DAY = {"muoneq", "poet", "soap"}


@pytest.mark.parametrize(
    "name",
    [n if n in EVERY_DAY else pytest.param(n, marks=pytest.mark.slow) for n in RECIPES],
)
def test_state_of_a_compiled_init_is_split_and_stays(name, params):
    tx = RECIPES[name](0.01)
    state = jax.jit(tx.init)(params)
    assert not whole(name, state)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.tree.map(jnp.sin, params), state, params)
        return optax.apply_updates(params, updates), state

    new = state
    for _ in range(2):
        params, new = step(params, new)
    assert not whole(name, new)
    found, expected = places(new), places(state)
    sizes = {jax.tree_util.keystr(keys): x.ndim for keys, x in leaves(state)}
    assert not [
        k for k, n in sizes.items() if not found[k].is_equivalent_to(expected[k], n)
    ]
    assert np.isfinite(sum(map(jnp.sum, jax.tree.leaves(params))))
