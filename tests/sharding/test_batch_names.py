"""All state of a stack that is kept in place has one name first on its batch axis.

Otherwise XLA (jaxlib 0.10.2) computes wrong numbers, without a word: where ``y @ y.mT``
has `fsdp` on the batch axis and y has `tp` there and `fsdp` on the axis of the sum.
"""

from collections import defaultdict

import jax
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import given, normal, on_mesh
from _registry import TABLE, small
from _walks import walk
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._paths import key_name

SHAPES = {f"{i}/kernel": (32, 16) for i in range(4)}
SPECS = dict.fromkeys(SHAPES, P("fsdp", "tp"))
WIDE = {f"{i}/wide/kernel": (16, 64) for i in range(2)}
OTHERS = {"layers/kernel": (4, 16, 8), "up/kernel": (32, 32), **WIDE}
# The wide kernels might hold two matrices beside one another, as gated units do.
pytestmark = pytest.mark.filterwarnings("ignore:Check how these parameters")


@pytest.fixture(params=KINDS)
def mesh(request, cpus):
    return make_mesh("fsdp4-tp2", request.param, cpus)


def part_and_gram(layout=None):
    """Some rows of the momentum, and their Gram matrix, as methods of low rank do."""
    del layout
    part = lambda x: x[..., :8, :]

    def init(stacks):
        parts = jax.tree.map(part, stacks)
        return parts, jax.tree.map(lambda x: x[..., :8], parts)

    def update(updates, state, params=None):
        del params
        parts = jax.tree.map(lambda old, x: old / 2 + part(x), state[0], updates)
        return updates, (parts, jax.tree.map(lambda y: y @ y.mT, parts))

    return optax.GradientTransformation(init, update)


def test_gram_matrix_is_that_of_the_part(mesh):
    params, grads = (on_mesh(normal(SHAPES, seed), SPECS, mesh) for seed in (0, 1))
    tx = om.on_matrices(part_and_gram, probe=False)
    shardings = given(mesh, SPECS)
    with jax.set_mesh(mesh):
        specs = om.state_specs(tx, params, shardings)
        to_sharding = lambda spec: NamedSharding(mesh, spec)
        places = jax.tree.map(to_sharding, specs)
        state = jax.tree.map(jax.device_put, tx.init(params), places)
        out = None if shardings is None else (shardings, places)
        _, state = jax.jit(tx.update, out_shardings=out)(grads, state, params)
    parts, grams = (np.concatenate(jax.tree.leaves(x)) for x in state.inner_state)
    assert np.abs(grams).max() > 1
    np.testing.assert_allclose(grams, parts @ parts.mT, rtol=1e-5, atol=1e-5)


@pytest.mark.broad
@walk("name", TABLE)
def test_one_name_is_first_on_the_batch_axis(name, cpus):
    mesh = make_mesh("fsdp4-tp2", "auto", cpus)
    shapes = {**SHAPES, **OTHERS}
    params = {p: jax.ShapeDtypeStruct(s, np.float32) for p, s in shapes.items()}
    specs = {p: P(*[None] * (len(s) - 2), "fsdp", "tp") for p, s in shapes.items()}
    shardings = {p: NamedSharding(mesh, spec) for p, spec in specs.items()}
    found = om.state_specs(small(name)(0.1), params, shardings)
    first = defaultdict(set)
    for keys, spec in jax.tree_util.tree_flatten_with_path(found)[0]:
        if spec and spec[0] is not None:
            group = next(key_name(key) for key in keys if "@" in key_name(key))
            names = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
            first[group].add(names[0])
    assert all(len(names) == 1 for names in first.values()), first
