"""The contract of blocks whose updates are finished steps, which need the weights."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import assert_same_path, given, normal, on_mesh, rollout
from _registry import FINISHING, MATRICES, tree
from jax.sharding import PartitionSpec as P

import optax_matrix as om
from optax_matrix._paths import named_leaves

PARAMS = tree(0)
blocks = pytest.mark.parametrize("name", FINISHING, scope="module")
pytestmark = pytest.mark.broad


@functools.cache
def compiled(name, **options):
    tx = om.on_matrices(FINISHING[name](), needs_params=True, probe=True, **options)
    return tx, jax.jit(tx.update)


def types(pytree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), pytree)


@blocks
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_shapes_dtypes_and_state_are_stable(name, dtype):
    tx, update = compiled(name)
    params = tree(0, dtype)
    state = jax.jit(tx.init)(params)
    assert types(jax.eval_shape(tx.init, params)) == types(state)
    for seed in (1, 2):
        updates, new = update(tree(seed, dtype), state, params)
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        chex.assert_tree_all_finite(updates)
        assert types(new) == types(state)
        state = new


@blocks
@pytest.mark.parametrize("kind", ["zero", "rank-one", "1e-20", "1e20"])
def test_extreme_gradients_are_survived(name, kind):
    tx, update = compiled(name)
    state, grads = jax.jit(tx.init)(PARAMS), tree(1)
    if kind == "rank-one":
        grads = jax.tree.map(lambda x: np.full_like(x, np.mean(x)), grads)
    else:
        size = 0 if kind == "zero" else float(kind)
        grads = jax.tree.map(lambda x: np.float32(x * size), grads)
    params = PARAMS
    for g in (grads, grads, tree(2)):
        updates, state = update(g, state, params)
        matrices = {p: named_leaves(updates)[p] for p in MATRICES}
        chex.assert_tree_all_finite((matrices, state))
        if kind == "zero" and g is grads:
            assert max(np.abs(x).max() for x in matrices.values()) < 1e-5


@blocks
def test_weights_of_zeros_are_finite(name):
    tx, update = compiled(name)
    zeros = jax.tree.map(np.zeros_like, PARAMS)
    updates, state = update(tree(1), jax.jit(tx.init)(zeros), zeros)
    chex.assert_tree_all_finite((updates, state))


@blocks
def test_a_gradient_that_is_not_finite_costs_one_step_of_its_matrix(name):
    tx, update = compiled(name, nonfinite="skip")
    bad = tree(1)
    bad["tall"]["kernel"][0, 0] = np.nan
    start = jax.jit(tx.init)(PARAMS)
    updates, state = update(bad, start, PARAMS)
    chex.assert_tree_all_finite((updates, state))
    assert not np.any(updates["tall"]["kernel"])
    good, _ = update(tree(1), start, PARAMS)
    np.testing.assert_array_equal(updates["wide"]["kernel"], good["wide"]["kernel"])


@blocks
def test_state_is_portable_and_may_be_quantized(name):
    tx, update = compiled(name, placement=om.quantized(min_size=1, block_size=8))
    _, state = update(tree(1), jax.jit(tx.init)(PARAMS), PARAMS)
    portable = om.to_portable(state, PARAMS)
    back = om.from_portable(portable, tx.init(PARAMS), PARAMS)
    want, _ = update(tree(2), state, PARAMS)
    got, _ = update(tree(2), back, PARAMS)
    jax.tree.map(np.testing.assert_array_equal, got, want)


SHAPES = {"up": (8, 4), "layers": (4, 8, 4)}
SPECS = {"up": P("fsdp", "tp"), "layers": P("fsdp", None, "tp")}


@functools.cache
def on_one_device(name):
    start, noise = (normal(SHAPES, seed) for seed in (0, 1))
    return rollout(compiled(name)[0], start, noise, steps=3)[0]


@blocks
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "owned", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["owners", "as"]
)
def test_steps_on_a_mesh_are_those_of_one_device(name, kind, owned, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    owners = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    tx = om.on_matrices(
        FINISHING[name](), needs_params=True, placement=owners if owned else None
    )
    trees = (on_mesh(normal(SHAPES, seed), SPECS, mesh) for seed in (0, 1))
    got, _, _ = rollout(tx, *trees, steps=3)
    assert_same_path(got, on_one_device(name), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rule", ["hyperball", "hyperball-spectral", "on_directions"])
def test_a_rate_may_be_injected_and_scheduled(rule):
    def make(learning_rate):
        if rule == "on_directions":
            block = om.transforms.on_directions(om.momentum(0.9), None, learning_rate)
        else:
            norm = "spectral" if "-" in rule else "frobenius"
            block = om.transforms.finish_step("hyperball", learning_rate, norm=norm)
        return om.on_matrices(block, needs_params=True)

    params = {"kernel": PARAMS["tall"]["kernel"]}
    schedule = optax.linear_schedule(0.2, 0.0, 4)
    updates = []
    for tx in (make(schedule), om.inject_hyperparams(make)(schedule)):
        state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
        for seed in (1, 2):
            g = {"kernel": tree(seed)["tall"]["kernel"]}
            new, state = update(g, state, params)
        updates.append(new["kernel"])
    np.testing.assert_allclose(*updates, rtol=1e-5, atol=1e-6)
