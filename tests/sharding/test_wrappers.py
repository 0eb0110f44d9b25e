"""Owners inside what a training loop wraps around an optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import (
    assert_same_path,
    assert_specs,
    cubic,
    given,
    normal,
    on_mesh,
    rollout,
)
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.tree_util import Partial

import optax_matrix as om

pytestmark = pytest.mark.broad

SPECS = {
    "a/0": P("fsdp", "tp"),
    "a/1": P("fsdp", "tp"),
    "a/2": P("fsdp", "tp"),
    "b": P(None, ("fsdp", "tp")),
    "bias": P("tp"),
}
SHAPES = {"a/0": (8, 12), "a/1": (8, 12), "a/2": (8, 12), "b": (8, 8), "bias": (8,)}


@pytest.fixture(params=KINDS)
def mesh(request, cpus):
    return make_mesh("fsdp4-tp2", request.param, cpus)


def _owners(mesh, **kwargs):
    return om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS), **kwargs)


def _matrices(placement, build=cubic, **kwargs):
    return om.on_matrices(build, placement=placement, probe=False, **kwargs)


def _compare(mesh, make, steps=2, dtypes=(np.float32, np.float32), **extra_args):
    """Runs ``make(placement)`` on the mesh and on one device."""
    rounding = 1e-5 if dtypes[0] == np.float32 else 2**-7  # An ulp of bf16.
    trees = [normal(SHAPES, i, dtype) for i, dtype in enumerate(dtypes)]
    want, whole_state, _ = rollout(make(None), *trees, steps=steps, **extra_args)
    trees = [on_mesh(tree, SPECS, mesh) for tree in trees]
    got, state, step = rollout(make(_owners(mesh)), *trees, steps=steps, **extra_args)
    assert_same_path(got, want, rtol=rounding)
    assert_specs(got[-1], SPECS, mesh)
    return whole_state, state, step


def test_parameters_reach_the_owners(mesh):
    def shrink(updates, state, params):
        norms = lambda x: jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
        trust = lambda g, w: g * norms(w) / (1 + norms(g)) + 0.1 * (w @ w.mT @ w)
        return jax.tree.map(trust, updates, params), state

    def init(params):  # State made of the parameters, not of zeros.
        return jax.tree.map(lambda w: w @ w.mT @ w, params)

    inner = optax.GradientTransformation(init, shrink)
    make = lambda placement: _matrices(placement, inner, needs_params=True)
    whole, state, _ = _compare(mesh, make)
    params = normal(SHAPES, 0)
    whole, portable = (om.to_portable(s, params) for s in (whole, state))
    for key, x in whole.items():
        np.testing.assert_allclose(portable[key], x, rtol=1e-5, atol=1e-5)
        assert np.any(portable[key])


@pytest.mark.daily("explicit")
def test_injected_hyperparameters_are_traced_and_may_change(mesh):
    def factory(rate: float, decay: float, placement):
        build = lambda layout, decay: optax.chain(optax.trace(decay), cubic(layout))
        matrices = _matrices(placement, Partial(build, decay=decay))
        return optax.chain(matrices, optax.scale(-1.0 * rate))

    rate = optax.linear_schedule(0.1, 0.02, 3)
    inject = om.inject_hyperparams(factory)
    make = lambda placement: inject(rate, decay=0.5, placement=placement)
    whole, state, step = _compare(mesh, make)
    params = normal(SHAPES, 0)
    for s in (whole, state):
        s.hyperparams["decay"] = jnp.asarray(0.25)
    want, _, _ = rollout(make(None), params, params, 1, whole)
    sharded = on_mesh(params, SPECS, mesh)
    assert_same_path([step(sharded, sharded, state)[0]], want)


def test_traced_hyperparams_of_on_matrices(mesh):
    build = lambda layout, scale: optax.chain(cubic(layout), optax.scale(scale))

    def step(grads, scale, placement):
        tx = _matrices(placement, Partial(build, scale=scale))
        return tx.update(grads, tx.init(grads))[0]

    grads, scale = normal(SHAPES, 0), np.float32(0.25)
    want = jax.jit(lambda *args: step(*args, None))(grads, scale)
    placement = _owners(mesh)
    sharded = on_mesh(grads, SPECS, mesh)
    got = jax.jit(lambda *args: step(*args, placement))(sharded, scale)
    assert_same_path([got], [want])
    assert_specs(got, SPECS, mesh)


def test_extra_arguments_reach_the_owners(mesh):
    def update(updates, state, params=None, *, value, scales):
        del params
        bend = lambda x: x * value / (1 + scales[0])
        return jax.tree.map(bend, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    extra = {"value": jnp.asarray(0.5), "scales": (np.float32(2.0), "static")}
    _compare(mesh, lambda placement: _matrices(placement, inner), **extra)


def test_multi_steps(mesh):
    make = lambda placement: optax.MultiSteps(
        _matrices(placement), 2
    ).gradient_transformation()
    _compare(mesh, make, steps=4)


@pytest.mark.daily("explicit")
def test_apply_if_finite(mesh):
    make = lambda placement: optax.apply_if_finite(_matrices(placement), 3)
    _compare(mesh, make)
    tx = make(_owners(mesh))
    params = on_mesh(normal(SHAPES, 0), SPECS, mesh)
    broken = dict(params, b=params["b"] * jnp.nan)
    updates, state = jax.jit(tx.update)(broken, tx.init(params), params)
    assert not jax.tree.reduce(lambda n, x: n + jnp.count_nonzero(x), updates, 0)
    assert int(state.total_notfinite) == 1


def test_scan_over_steps(mesh):
    tx = _matrices(_owners(mesh))
    params, noise = (normal(SHAPES, seed) for seed in (0, 1))
    want = rollout(_matrices(None), params, noise, steps=3)[0]
    params, noise = (on_mesh(tree, SPECS, mesh) for tree in (params, noise))
    state = tx.init(params)

    def body(carry, _):
        params, state = carry
        grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    scan = jax.jit(lambda carry: jax.lax.scan(body, carry, length=3)[0])
    got, new = scan((params, state))
    assert_same_path([got], want[-1:])
    assert_specs(got, SPECS, mesh)
    assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, state)


def test_partition_and_masked(mesh):
    labels = {p: "b" if p == "b" else "rest" for p in SPECS}
    make = lambda placement: optax.partition(
        {
            "b": optax.chain(_matrices(placement), optax.scale(0.5)),
            "rest": optax.masked(
                optax.chain(_matrices(placement), optax.sgd(0.1)),
                lambda tree: {p: p != "a/1" for p in tree},
            ),
        },
        labels,
    )
    _compare(mesh, make)


@pytest.mark.parametrize("of_grads", [np.float32, jnp.bfloat16])
def test_gradients_of_another_dtype_than_the_parameters(mesh, of_grads):
    sign = optax.chain(optax.trace(0.5), optax.scale_by_sign(), optax.scale(0.25))
    dtypes = (jnp.bfloat16 if of_grads == np.float32 else np.float32, of_grads)
    make = lambda placement: _matrices(placement, sign)
    whole, state, _ = _compare(mesh, make, dtypes=dtypes)
    kinds = lambda tree: {str(x.dtype) for x in jax.tree.leaves(tree.inner_state)}
    assert kinds(state) == kinds(whole) == {np.dtype(dtypes[0]).name}


def test_wire_dtype_rounds_twice_and_no_more(mesh):
    # 1.25 x of a rounded x, and the sum, are exact in f32 and in bf16 are not.
    inner = optax.stateless_with_tree_map(lambda x, _: 1.25 * x + x)
    wire = lambda x: jnp.asarray(x).astype(jnp.bfloat16).astype(np.float32)
    grads = normal(SHAPES, 0)
    sharded = on_mesh(grads, SPECS, mesh)
    tx = _matrices(_owners(mesh, wire_dtype=jnp.bfloat16), inner)
    update, state = jax.jit(tx.update), tx.init(sharded)
    updates, _ = update(sharded, state)
    for path in SHAPES.keys() - {"bias"}:
        np.testing.assert_array_equal(updates[path], wire(2.25 * wire(grads[path])))
        assert updates[path].dtype == np.float32
    np.testing.assert_array_equal(updates["bias"], grads["bias"])
    # The compiler for CPU travels in f32 all the same; what it is given counts.
    program = update.lower(sharded, state).as_text().splitlines()
    # Fewer matrices than owners: both groups travel together, there and back.
    travel = [line for line in program if "stablehlo.all_to_all" in line]
    assert len(travel) == 2
    assert all("bf16" in line for line in travel)


def test_wire_dtype_is_within_its_rounding_of_the_exact_step(mesh):
    grads = normal(SHAPES, 0)
    sharded = on_mesh(grads, SPECS, mesh)
    tx, whole = _matrices(_owners(mesh, wire_dtype=jnp.bfloat16)), _matrices(None)
    updates, _ = jax.jit(tx.update)(sharded, tx.init(sharded))
    want, _ = jax.jit(whole.update)(grads, whole.init(grads))
    # Half an ulp of bf16 on either way; the chain's slope is below two.
    for path in SHAPES:
        error = np.linalg.norm(updates[path] - want[path])
        assert error < 2**-7 * np.linalg.norm(want[path])
    assert np.any(np.asarray(updates["b"]) != np.asarray(want["b"]))


def test_gradients_of_another_sharding_than_the_parameters(mesh):
    grads = normal(SHAPES, 0)
    params = on_mesh(normal(SHAPES, 1), SPECS, mesh)
    tx, whole = _matrices(_owners(mesh)), _matrices(None)
    want, _ = jax.jit(whole.update)(grads, whole.init(grads))
    update, state = jax.jit(tx.update), tx.init(params)
    turned = {p: P(*reversed((*spec, None)[:2])) for p, spec in SPECS.items()}
    turned["bias"] = SPECS["bias"]
    for specs in (dict.fromkeys(SPECS, P()) | {"bias": P("tp")}, turned):
        got, _ = update(on_mesh(grads, specs, mesh), state, params)
        assert_same_path([got], [want])
        assert_specs(got, SPECS, mesh)


def test_mixed_axes_take_given_specs(cpus):
    kinds = (jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto)
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=kinds, devices=cpus)
    shardings = {path: NamedSharding(mesh, spec) for path, spec in SPECS.items()}
    params, noise = normal(SHAPES, 0), normal(SHAPES, 1)
    want = rollout(_matrices(None), params, noise)[0]
    params, noise = (on_mesh(tree, SPECS, mesh) for tree in (params, noise))
    tx = _matrices(om.owners(("fsdp", "tp"), param_specs=shardings))
    got = rollout(tx, params, noise)[0]
    assert_same_path(got, want)
    assert_specs(got[-1], SPECS, mesh)


def test_parameters_travel_unrounded(cpus):
    """A method that keeps the first weights must not keep rounded ones."""
    keep = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.array, params), optax.identity().update
    )
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    kernel = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    params = {"w": jax.device_put(kernel, NamedSharding(mesh, P("fsdp", "tp")))}
    placement = om.owners(("fsdp", "tp"), wire_dtype=jnp.bfloat16)
    tx = om.on_matrices(keep, placement=placement, needs_params=True)
    state = om.to_portable(tx.init(params), params)
    np.testing.assert_array_equal(state["inner_state/w"][0], kernel.T)
