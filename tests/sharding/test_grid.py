"""Owners on every mesh, mode, spec and count: the run of one device, and no waste.

Each case compiles one step for a tree that holds leaves split in all five ways, and
everything that is asked of it is asked of that one program.
"""

import functools
import itertools

import jax
import numpy as np
import optax
import pytest
from _meshes import (
    COUNTS,
    KINDS,
    LAYOUTS,
    MESHES,
    collectives,
    draw,
    make_mesh,
    owned_per_device,
    put,
    shardings,
)
from _probes import CHAINS, MORE_CHAINS, STATE_BYTES
from _programs import compilations
from jax.sharding import NamedSharding

import optax_matrix as om

STEPS = 3
FAST = [
    ("fsdp4-tp2", "explicit", "rest", "decomposition"),
    ("fsdp4-tp2", "auto", "rest", "elementwise"),
]


def _case_of_grid(indices):
    """Every second case holds every pair of values; the others are for test-slow."""
    values = (MESHES, KINDS, COUNTS, CHAINS)
    case = tuple(list(names)[i] for names, i in zip(values, indices, strict=True))
    marks = [pytest.mark.slow if sum(indices) % 2 else pytest.mark.broad]
    return pytest.param(*case, id="-".join(case), marks=[] if case in FAST else marks)


CASES = [_case_of_grid(i) for i in itertools.product(*map(range, (3, 2, 2, 3)))]
# Sharded and replicated programs fuse differently: a few ulp of f32 in numbers of
# order one, which three steps and the condition of a QR make a few hundred.
CLOSE = {"rtol": 1e-5, "atol": 3e-5}


def _step(tx):
    def step(params, noise, state):
        grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=2)


@functools.cache
def _reference(chain, counts):
    """Parameters and portable state after each step on one device, not donated."""
    tx = om.on_matrices(MORE_CHAINS[chain], probe=False)
    params, noise = draw(counts, 0), draw(counts, 1)
    state, step, path = tx.init(params), _step(tx), []
    for _ in range(STEPS):
        params, state = step(params, noise, state)
        path.append((params, _numpy(om.to_portable(state, params))))
    return path


@functools.cache
def _case(mesh_name, kind, counts, chain):
    mesh = make_mesh(mesh_name, kind, jax.devices("cpu"))
    specs = shardings(counts, mesh_name, mesh)
    given = None if kind == "explicit" else specs
    placement = om.owners(tuple(MESHES[mesh_name]), param_specs=given)
    # The probe costs compilations; test_coupling_is_refused has it.
    tx = om.on_matrices(MORE_CHAINS[chain], placement=placement, probe=False)
    return mesh, specs, tx, _step(tx)


def _numpy(tree):
    return jax.tree.map(np.asarray, tree)


def _raw(x):
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _assert_close(got, want, **tolerance):
    assert set(got) == set(want)
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, err_msg=name, **tolerance)


def _assert_lies_as(state, specs, mesh):
    assert jax.tree.structure(state) == jax.tree.structure(specs)
    for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True):
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim), spec


def _assert_replicated_agree(state):
    for x in jax.tree.leaves(state):
        if x.ndim == 0:
            parts = [np.asarray(s.data) for s in _raw(x).addressable_shards]
            assert len(parts) == 8
            assert all(np.array_equal(part, parts[0]) for part in parts)


def _bytes_per_device(state):
    sizes = dict.fromkeys(jax.devices("cpu"), 0)
    for x in map(_raw, jax.tree.leaves(state)):
        for shard in x.addressable_shards:
            sizes[shard.device] += shard.data.nbytes
    return set(sizes.values())


def _expected_bytes(chain, counts, mesh_name):
    floats, of_matrix, total = STATE_BYTES[chain]
    for name, count in COUNTS[counts].items():
        m, n = LAYOUTS[name][0][-1], LAYOUTS[name][0][-2]
        owned = owned_per_device(name, count, mesh_name, MESHES[mesh_name])
        manifest = 16  # Four uint32 per matrix.
        total += owned * (4 * floats * m * n + of_matrix + manifest)
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_name", "kind", "counts", "chain"), CASES)
def test_grid(mesh_name, kind, counts, chain, cpus):
    del cpus
    mesh, sharding, tx, step = _case(mesh_name, kind, counts, chain)
    params, noise = (put(draw(counts, seed), sharding) for seed in (0, 1))
    state = jax.jit(tx.init)(params)
    specs = om.state_specs(tx, params, sharding)
    abstract = jax.eval_shape(tx.init, params)
    assert jax.tree.structure(abstract) == jax.tree.structure(state)
    assert jax.tree.map(_type, abstract) == jax.tree.map(_type, state)
    assert _bytes_per_device(state) == {_expected_bytes(chain, counts, mesh_name)}

    types = jax.tree.map(jax.typeof, state)
    for k, (want, portable) in enumerate(_reference(chain, counts)):
        old = state
        with compilations() as compiled:
            params, state = step(params, noise, state)
        assert len(compiled) == (k == 0)
        _assert_close(_numpy(params), want, **CLOSE)
        _assert_close(_numpy(om.to_portable(state, params)), portable, **CLOSE)
        for path, x in params.items():
            assert x.sharding.is_equivalent_to(sharding[path], x.ndim), path
        assert jax.tree.map(jax.typeof, state) == types
        _assert_lies_as(state, specs, mesh)
        _assert_replicated_agree(state)
        assert all(x.is_deleted() for x in jax.tree.leaves(old))
    if chain != "random":
        # JAX dispatches sharded key arrays by two entries, also of `lambda key: key`.
        assert step._cache_size() == 1

    # Layers are whole on their devices; the four other groups travel there and back.
    # What is left over of three travels together: of "rest" on a mesh of 4 x 2 two of
    # them have nothing else.
    found = collectives(step.lower(params, noise, state).compile())
    fewer = (mesh_name, counts) == ("fsdp4-tp2", "rest")
    assert found == {"all-to-all": 6 if fewer else 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    "chain", [*CHAINS, pytest.param("low_rank", marks=pytest.mark.slow)]
)
def test_portable_state_carries_a_run_from_mesh_to_mesh(chain, cpus):
    del cpus
    params, noise = draw("rest", 0), draw("rest", 1)
    start = om.on_matrices(MORE_CHAINS[chain], probe=False).init(params)
    portable = _numpy(om.to_portable(start, params))
    route = [("fsdp8", "explicit"), ("fsdp4-tp2", "auto"), ("fsdp2-expert4", "auto")]
    for stop, (want, portable_after) in zip(
        route, _reference(chain, "rest"), strict=True
    ):
        mesh, sharding, tx, step = _case(*stop, "rest", chain)
        params = put(_numpy(params), sharding)
        fresh = tx.init(params)
        state = om.from_portable(portable, fresh, params)
        _assert_lies_as(state, om.state_specs(tx, params, sharding), mesh)
        assert jax.tree.map(jax.typeof, state) == jax.tree.map(jax.typeof, fresh)
        params, state = step(params, put(noise, sharding), state)
        portable = _numpy(om.to_portable(state, params))
        _assert_close(_numpy(params), want, **CLOSE)
        _assert_close(portable, portable_after, **CLOSE)
    om.check_restored(state)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_coupling_of_matrices_is_refused(kind, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    sharding = shardings("rest", "fsdp4-tp2", mesh)
    params = put(draw("rest", 0), sharding)
    placement = om.owners.from_params(params, ("fsdp", "tp"))
    tx = om.on_matrices(optax.clip_by_global_norm(1.0), placement=placement)
    with pytest.raises(ValueError, match=r"`build` must.*per_matrix"):
        tx.init(params)


def _type(x):
    return x.shape, x.dtype
