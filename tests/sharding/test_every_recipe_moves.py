"""Every recipe's state moves to other meshes by `to_portable` and Orbax, exactly.

A run on eight owners is saved after two steps. It goes on with four owners on another
mesh, and on one device, as it does where it was. In float64, as some methods amplify
the rounding of float32 (tests/sharding/test_same_results.py).
"""

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _meshes import make_mesh
from _registry import RECIPES, tree
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES = {
    "tall": {"kernel": (8, 16), "bias": (16,)},
    "layers": {"kernel": (3, 16, 8)},  # Three matrices: stacks of eight, four, three.
    "embed": {"embedding": (8, 4)},
}
SPECS = {
    "fsdp8": {
        "tall": {"kernel": P("fsdp"), "bias": P("fsdp")},
        "layers": {"kernel": P(None, "fsdp")},
        "embed": {"embedding": P("fsdp")},
    },
    "fsdp4-tp2": {
        "tall": {"kernel": P("fsdp", "tp"), "bias": P("tp")},
        "layers": {"kernel": P(None, "tp", "fsdp")},
        "embed": {"embedding": P("tp", "fsdp")},
    },
}


def draw(seed):
    return tree(seed, np.float64, shapes=SHAPES)


def on(mesh_name, name, devices):
    """The recipe with owners along `fsdp`, its step, and where parameters lie."""
    if mesh_name is None:
        at, placement = jax.sharding.SingleDeviceSharding(devices[0]), None
        shardings = jax.tree.map(lambda _: at, draw(0))
    else:
        mesh = make_mesh(mesh_name, "auto", devices)
        place = lambda spec: NamedSharding(mesh, spec)
        is_spec = lambda node: isinstance(node, P)
        shardings = jax.tree.map(place, SPECS[mesh_name], is_leaf=is_spec)
        placement = om.owners("fsdp", param_specs=shardings)
    tx = RECIPES[name](0.01, placement=placement)

    @jax.jit
    def step(params, noise, state):
        grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), updates, state

    return tx, step, shardings


def same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_state_goes_on_with_other_owners_and_on_one_device(
    name, cpus, tmp_path
):
    noise = draw(1)
    tx, step, shardings = on("fsdp8", name, cpus)
    params = jax.device_put(draw(0), shardings)
    state = tx.init(params)
    for _ in range(2):
        params, _, state = step(params, noise, state)
    portable = jax.tree.map(np.asarray, om.to_portable(state, params))
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "run", {"params": params, "state": portable})
    _, want, state = step(params, noise, state)
    want_after = om.to_portable(state, params)

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    for mesh_name in ("fsdp4-tp2", None):
        tx, step, shardings = on(mesh_name, name, cpus)
        typed = lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at)
        target = {"params": jax.tree.map(typed, params, shardings), "state": portable}
        with ocp.StandardCheckpointer() as checkpoints:
            restored = checkpoints.restore(tmp_path / "run", target)
        moved = restored["params"]
        same(moved, params)
        fresh = tx.init(moved)
        state = om.from_portable(restored["state"], fresh, moved)
        assert jax.tree.map(jax.typeof, state) == jax.tree.map(jax.typeof, fresh)
        same(om.to_portable(state, moved), portable)
        _, updates, state = step(moved, noise, state)
        jax.tree.map(close, updates, want)
        after = om.to_portable(state, moved)
        assert after.keys() == want_after.keys()
    om.check_restored(state)
