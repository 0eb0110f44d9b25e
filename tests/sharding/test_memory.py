"""State in the memory of the host between steps: the same steps, elsewhere."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
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
FEW = {name: SHAPES[name] for name in ("up", "down", "bias")}
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


@pytest.mark.broad
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_leaves_it_there(kind, jitted, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    start, noise = (on_mesh(normal(FEW, s), SPECS, mesh) for s in (0, 1))
    make = functools.partial(om.owners, ("fsdp", "tp"), param_specs=given(mesh, SPECS))
    where, found = {"up": True, "down": False, "bias": True}, []
    for memory in ("device", "pinned_host"):
        tx = om.muon(0.02, placement=make(memory=memory))
        path, state, _ = rollout(tx, start, noise)
        reset = lambda state, tx=tx, at=path[-1]: om.checkpoint.reset_state(
            tx, state, at, where
        )
        new = (jax.jit(reset) if jitted else reset)(state)
        assert memories(new) == memories(state)
        assert memories(new)[True] == {memory}
        found.append(om.to_portable(new, path[-1]))
        assert not np.any(found[-1]["inner_state/0/mu/up"])
        assert np.any(found[-1]["inner_state/0/mu/down"])
    jax.tree.map(np.testing.assert_array_equal, *found)


@pytest.mark.broad
def test_orbax_moves_it_between_memories(tmp_path, cpus):
    """A file restores to where the target lies, and by paths to any placement."""
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    start, noise = (on_mesh(normal(FEW, s), SPECS, mesh) for s in (0, 1))
    device, host = (
        om.muon(0.02, placement=om.owners(("fsdp", "tp"), memory=memory))
        for memory in ("device", "pinned_host")
    )
    path, state, _ = rollout(host, start, noise)
    params, portable = path[-1], om.to_portable(state, path[-1])
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "state", state)
        checkpoints.save(tmp_path / "portable", portable)
        checkpoints.wait_until_finished()
        for tx, memory in ((host, "pinned_host"), (device, "device")):
            back = checkpoints.restore(tmp_path / "state", tx.init(params))
            om.check_restored(back)
            assert memories(back)[True] == {memory}
            jax.tree.map(np.testing.assert_array_equal, back, state)
            checkpoints.save(tmp_path / memory, back)
            checkpoints.wait_until_finished()
        back = checkpoints.restore(tmp_path / "device", host.init(params))
        assert memories(back)[True] == {"pinned_host"}
        jax.tree.map(np.testing.assert_array_equal, back, state)
        read = checkpoints.restore(tmp_path / "portable")
    for name in portable:
        np.testing.assert_array_equal(read[name], portable[name], err_msg=name)
    one = jax.device_get(params)
    for tx, at, memory in (
        (om.muon(0.02, placement=HOST), params, "pinned_host"),
        (om.muon(0.02), params, "device"),
        (om.muon(0.02, placement=HOST), one, "pinned_host"),
    ):
        back = om.from_portable(read, tx.init(at), at)
        assert memories(back)[True] == {memory}
        again = om.to_portable(back, at)
        jax.tree.map(np.testing.assert_array_equal, again, portable)


def test_mistakes_are_told():
    for make in (om.sharding.as_sharded, functools.partial(om.owners, "fsdp")):
        with pytest.raises(ValueError, match="`memory` must be 'device' or 'pinned_h"):
            make(memory="host")
