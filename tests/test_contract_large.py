"""Every recipe on large matrices: all thresholds are lowered, so that small ones do."""

import functools
import inspect
from unittest import mock

import jax
import numpy as np
import optax
import pytest
from _lowered import NAMES, lowered
from _meshes import put
from _registry import RECIPES, TABLE, small, tree
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

# Longer than `noise_side`, so that lowering it changes nothing; more than a stack has
# room for, even on eight devices, which they do not divide.
SHAPES = {"layers": dict.fromkeys(("first", "second"), (9, 24, 16))}
SPECS = {"layers": dict.fromkeys(("first", "second"), P(None, "fsdp", "tp"))}
AXES = ("fsdp", "tp")

LARGE = RECIPES | {
    # Kernels that no method has by default.
    "muon-svd": small("muon", polar="polar_svd"),
    "aro-householder": small("aro", qr="qr_householder"),
    # One side is above the bound.
    **{
        f"{name}-max_dim": small(name, max_dim=20)
        for name, recipe in TABLE.items()
        if "max_dim" in inspect.signature(recipe).parameters
    },
}
one_device = functools.partial(mock.patch.object, jax, "device_count", lambda: 1)


def shardings(mesh):
    is_spec = lambda x: isinstance(x, P)
    return jax.tree.map(functools.partial(NamedSharding, mesh), SPECS, is_leaf=is_spec)


def owners(mesh):
    return om.owners(AXES, param_specs=shardings(mesh))


def trace(name, place):
    """The types of updates and parameters."""
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    params, options = jax.tree.map(shape, tree(0, shapes=SHAPES)), {}
    if place == "owners":
        mesh = AbstractMesh((4, 2), AXES, axis_types=(AxisType.Auto,) * 2)
        of = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
        params = jax.tree.map(of, params, shardings(mesh))
        options = {"placement": owners(mesh)}
    tx = LARGE[name](0.01, **options)
    with one_device():
        state = jax.eval_shape(tx.init, params)
        updates, new = jax.eval_shape(tx.update, params, state, params)
    assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, state)
    return updates, params


@pytest.mark.broad
@pytest.mark.daily("poet-owners", "muon-one")
@pytest.mark.parametrize("place", ["one", "owners"])
@pytest.mark.parametrize("name", LARGE)
def test_a_step_can_be_traced(name, place):
    with lowered():
        updates, params = trace(name, place)
    of_type = lambda x: (x.shape, x.dtype)
    assert jax.tree.map(of_type, updates) == jax.tree.map(of_type, params)


CROSSING = ("muon", "muon-svd", "aro-householder", "ldadam", "oft")
ONLY = {"one": {"joined_elements"}, "owners": {"busy_side"}}


@pytest.mark.broad
@pytest.mark.parametrize("place", ONLY)
def test_every_threshold_is_crossed(place):
    """By these methods, so that the test above covers what is large."""
    seen = set()
    with lowered(seen=seen):
        for name in CROSSING:
            trace(name, place)
    (other,) = (x for other, names in ONLY.items() if other != place for x in names)
    above = {name for name, is_above in seen if is_above}
    assert set(NAMES) - above == {other, "gathered_bytes"}


def run(tx, params, noise):
    """Parameters after three steps, compiled once."""

    @jax.jit
    def step(params, state):
        grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(3):
        params, state = step(params, state)
    return jax.tree.map(np.asarray, params)


# First bases are of one gradient: beyond its rank they hold noise of full size,
# as those of blocks do wherever one is placed.
FULL_RANK = LARGE | {name: small(name, side="short") for name in ("soap", "splus")}
del FULL_RANK["soap-blocks"]
# With `stagger` a matrix's turn depends on its place in a stack.
FULL_RANK["alice-carry"] = small("alice", update_interval=2, transport="carry")


@functools.cache
def of_small(name):
    trees = (tree(seed, shapes=SHAPES) for seed in (0, 1))
    return run(FULL_RANK[name](0.01), *trees)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_RANK)
def test_owners_of_large_matrices_change_rounding_only(name, cpus):
    mesh = jax.make_mesh((4, 2), AXES, (AxisType.Auto,) * 2, devices=cpus)
    trees = (put(tree(seed, shapes=SHAPES), shardings(mesh)) for seed in (0, 1))
    with lowered():
        got = run(FULL_RANK[name](0.01, placement=owners(mesh)), *trees)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, got, of_small(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_RANK)
def test_the_loops_for_tpus_change_rounding_only(name):
    """In all three steps by less than 1% of their size: signs of small numbers turn."""
    params, noise = (tree(seed, shapes=SHAPES) for seed in (0, 1))
    with lowered(platform="tpu"), one_device():
        got = run(FULL_RANK[name](0.01, precision="exact"), params, noise)

    def compare(x, want, start):
        assert np.linalg.norm(x - want) < 0.01 * np.linalg.norm(want - start)

    jax.tree.map(compare, got, of_small(name), params)
