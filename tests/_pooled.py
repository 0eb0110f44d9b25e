"""Steps with owners whose state of several groups shares slots, and without."""

import contextlib

import jax
import numpy as np
import optax
from _meshes import KINDS
from _owned import given, normal, on_mesh
from jax.sharding import PartitionSpec as P

import optax_matrix as om

# Two, three and two matrices for eight owners: a pool of three groups.
SHAPES = {f"a/{i}/kernel": (16, 8) for i in range(2)}
SHAPES |= {f"b/{i}/kernel": (8, 8) for i in range(3)}
SHAPES |= {f"c/{i}/kernel": (8, 24) for i in range(2)}
# Full rounds besides; sections of a leaf; a group that no other can share with.
MORE = {"a/kernel": (9, 16, 8), "b/kernel": (10, 8, 8), "c/kernel": (7, 8, 24)}
TREES = {"few": SHAPES, "rounds": MORE}


def make_mesh(kind, devices, size=8):
    kinds = (KINDS[kind],)
    return jax.make_mesh((size,), ("fsdp",), axis_types=kinds, devices=devices[:size])


def specs_of(shapes):
    front = lambda shape: P(*[None] * (len(shape) - 2), "fsdp", None)
    return {path: front(shape) for path, shape in shapes.items()}


def within(mesh):
    explicit = KINDS["explicit"] in mesh.axis_types
    return jax.set_mesh(mesh) if explicit else contextlib.nullcontext()


def run(make, mesh, shapes, *, pool, steps=3, state=None, start=None, **options):
    """Parameters after the steps, the state, and the optimizer."""
    specs = specs_of(shapes)
    options = {"param_specs": given(mesh, specs), **options}
    tx = make(om.owners("fsdp", pool_state=pool, **options))
    params = on_mesh(normal(shapes, 0) if start is None else start, specs, mesh)
    noise = on_mesh(normal(shapes, 1), specs, mesh)
    with within(mesh):
        state = tx.init(params) if state is None else state(tx, params)

        @jax.jit
        def step(params, state):
            grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(steps):
            params, state = step(params, state)
    return params, state, tx


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_close(one, other):
    """The same trees to rounding, as two programs are fused differently."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        x, y = (np.asarray(v, np.float64) for v in (x, y))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def assert_same(one, other):
    """Parameters and the portable form of states."""
    portable = [om.to_portable(state, params) for params, state, _ in (one, other)]
    assert_close(*zip((one[0], other[0]), portable, strict=True))


def bytes_held(state):
    of_device = lambda x: x.addressable_shards[0].data.nbytes
    return sum(map(of_device, jax.tree.leaves(state)))


def muoneq(placement):
    return om.muoneq(0.02, placement=placement)


def soap(placement):
    return om.soap(0.02, update_interval=2, placement=placement)


def paths_of(tree):
    return [jax.tree_util.keystr(keys) for keys, _ in jax.tree.leaves_with_path(tree)]
