"""`placement=None`: every recipe on sharded parameters, in Auto and Explicit mode."""

import jax
import numpy as np
import optax
import pytest
from _registry import RECIPES, tree
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SHAPES = {
    "rows": {"kernel": (8, 4)},
    "columns": {"kernel": (4, 8)},
    "both": {"kernel": (8, 8), "bias": (8,)},
    "layers": {"kernel": (4, 4, 8)},
    "embed": {"embedding": (8, 4)},
}
SPECS = {
    "rows": {"kernel": P("fsdp", None)},
    "columns": {"kernel": P(None, "fsdp")},
    "both": {"kernel": P("fsdp", "tp"), "bias": P("tp")},
    "layers": {"kernel": P("fsdp", None, "tp")},
    "embed": {"embedding": P("fsdp", "tp")},
}


@pytest.fixture(params=[AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
def mesh(request, cpus):
    return jax.make_mesh(
        (4, 2), ("fsdp", "tp"), axis_types=(request.param,) * 2, devices=cpus
    )


@pytest.mark.broad
@pytest.mark.parametrize("name", RECIPES)
def test_sharded_equals_replicated(name, mesh):
    tx = RECIPES[name](0.01)
    params, grads = tree(0, shapes=SHAPES), tree(1, shapes=SHAPES)
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params)

    is_spec = lambda x: isinstance(x, P)
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), SPECS, is_leaf=is_spec)
    put = lambda x: jax.tree.map(jax.device_put, x, shardings)
    params, grads = put(params), put(grads)
    state = tx.init(params)

    def step(params, grads, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), updates, state

    explicit = AxisType.Explicit in mesh.axis_types
    step = jax.jit(step, out_shardings=None if explicit else (shardings,) * 2 + (None,))
    new, updates, _ = step(params, grads, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        updates,
        want,
    )
    for x, old in zip(jax.tree.leaves(new), jax.tree.leaves(params), strict=True):
        assert x.sharding.is_equivalent_to(old.sharding, x.ndim)
