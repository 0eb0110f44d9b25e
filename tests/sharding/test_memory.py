"""State in the memory of the host between steps: the same steps, elsewhere."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import assert_same_path, given, normal, on_mesh, rollout
from jax.sharding import PartitionSpec as P

import optax_matrix as om

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 10),
    reason="before JAX 0.10 CPU devices of a mesh have no memory of the host",
)
SHAPES = {"up": (8, 12), "down": (12, 8), "layers": (4, 8, 12), "bias": (8,)}
SPECS = {
    "up": P("fsdp", "tp"),
    "down": P("fsdp", None),
    "layers": P(None, "fsdp", "tp"),
    "bias": P(),
}
HOST = om.sharding.as_sharded(memory="pinned_host")
RECIPES = {
    "muon": om.muon,
    "soap": functools.partial(om.soap, update_interval=2),
    "galore": functools.partial(om.galore, rank=4, update_interval=2),
}


def memories(state):
    """The memory of each array, by whether it has several numbers per matrix."""
    found = {True: set(), False: set()}
    inner = (state.inner_state, state.manifest, state.other)
    for part, x in ((i, x) for i, t in enumerate(inner) for x in jax.tree.leaves(t)):
        found[part == 0 and math.prod(x.shape[1:]) > 1].add(x.sharding.memory_kind)
    return found


@pytest.mark.broad
@pytest.mark.parametrize("name", RECIPES)
def test_on_one_device(name):
    start, noise = (normal(SHAPES, seed) for seed in (0, 1))
    want, _, _ = rollout(RECIPES[name](0.02), start, noise, steps=3)
    tx = RECIPES[name](0.02, placement=HOST)
    for init in (tx.init, jax.jit(tx.init)):
        begun = init(start)
        assert memories(begun)[True] == {"pinned_host"}
    got, state, step = rollout(tx, start, noise, steps=3, state=begun)
    assert_same_path(got, want)
    assert memories(state) == {True: {"pinned_host"}, False: {"device"}}
    types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert types(begun) == types(state)
    assert step._cache_size() <= 2  # As committed arrays come back.


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "wrap", [lambda p: p, om.quantized], ids=["plain", "quantized"]
)
def test_owners(kind, wrap, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    start, noise = (on_mesh(normal(SHAPES, s), SPECS, mesh) for s in (0, 1))
    make = functools.partial(om.owners, ("fsdp", "tp"), param_specs=given(mesh, SPECS))
    paths = []
    for memory in ("device", "pinned_host"):
        tx = om.muon(0.02, placement=wrap(make(memory=memory)))
        path, state, _ = rollout(tx, start, noise)
        paths.append(path)
        assert memories(state)[True] == {memory}
    jax.tree.map(np.testing.assert_array_equal, *paths)
    said = om.state_specs(tx, start, None if given(mesh, SPECS) is None else SPECS)
    assert jax.tree.structure(said) == jax.tree.structure(state)


@pytest.mark.broad
def test_it_is_portable_scanned_and_donated():
    start, noise = (normal(SHAPES, seed) for seed in (0, 1))
    tx = om.muon(0.02, placement=HOST)
    path, state, _ = rollout(tx, start, noise)
    portable = om.to_portable(state, start)
    back = om.from_portable(portable, tx.init(start), start)
    want, _, _ = rollout(tx, path[-1], noise, steps=2, state=state)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def scanned(params, state):
        def body(carry, _):
            params, state = carry
            grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(body, (params, state), length=2)[0]

    params, state = scanned(jax.tree.map(jnp.array, path[-1]), back)
    assert_same_path([params], want[-1:])
    assert memories(state)[True] == {"pinned_host"}


def test_mistakes_are_told():
    for make in (om.sharding.as_sharded, functools.partial(om.owners, "fsdp")):
        with pytest.raises(ValueError, match="`memory` must be 'device' or 'pinned_h"):
            make(memory="host")
