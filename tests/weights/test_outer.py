"""`outer`: DiLoCo's outer step with one worker, in NumPy float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS, make_mesh
from _owned import assert_same_path, assert_specs, given, normal, on_mesh, rollout
from _registry import RECIPES, tree
from jax.sharding import PartitionSpec as P

import optax_matrix as om

EVERY, RATE, MOMENTUM = 3, 0.7, 0.6
INNER = {
    "sgd": (lambda: optax.sgd(0.1), lambda g: 0.1 * g),
    "muon": (
        lambda: om.muon(0.1, b1=0.0, polar="polar_svd"),
        # The factor "out/in" of a kernel (4, 6), (in, out).
        lambda g: (
            0.1
            * np.sqrt(6 / 4)
            * np.linalg.svd(g, full_matrices=False)[0]
            @ np.linalg.svd(g, full_matrices=False)[2]
        ),
    ),
}


def numpy_path(start, noise, direction):
    """torch.optim.SGD(nesterov=True) on slow weights, as SNOO's program writes it."""
    slow, w, buffer = start, start, 0.0
    for t, n in enumerate(noise, 1):
        w = w - direction(w + n)
        if t % EVERY == 0:
            way_back = slow - w
            buffer = MOMENTUM * buffer + way_back
            w = slow = slow - RATE * (way_back + MOMENTUM * buffer)
        yield w, slow


def wrapped(inner, every=EVERY, rate=RATE, momentum=MOMENTUM):
    return om.outer(inner, every=every, rate=rate, momentum=momentum)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", INNER)
def test_it_is_the_rule_of_the_papers(name):
    make, direction = INNER[name]
    start, *noise = np.random.default_rng(0).standard_normal((9, 4, 6))
    tx, params = wrapped(make()), {"w": start}
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    assert state.momentum["w"].dtype == state.slow["w"].dtype == np.float64
    for n, (w, slow) in zip(noise, numpy_path(start, noise, direction), strict=True):
        updates, state = update({"w": params["w"] + n}, state, params)
        params = jax.tree.map(np.add, params, jax.device_get(updates))
        np.testing.assert_allclose(params["w"], w, rtol=1e-11, atol=1e-13)
        held = om.evaluation_params(state, params)["w"]
        np.testing.assert_allclose(held, slow, rtol=1e-11, atol=1e-13)


@pytest.mark.broad
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.daily("muon-", "poet-", "soap-")
@pytest.mark.parametrize("name", [f"{name}-" for name in RECIPES])
def test_of_rate_one_without_momentum_it_is_the_inner_optimizer(name, every):
    inner = RECIPES[name.removesuffix("-")](0.02)
    paths = []
    for tx in (inner, wrapped(inner, every, 1.0, 0.0)):
        params, state, update = tree(0), tx.init(tree(0)), jax.jit(tx.update)
        for seed in (1, 2, 3):
            updates, state = update(tree(seed), state, params)
            params = optax.apply_updates(params, updates)
        paths.append(params)
    jax.tree.map(np.testing.assert_array_equal, *paths)


def test_the_slow_weights_are_those_that_were_made():
    """Bit for bit, so that no difference comes back as a gradient."""
    tx, params = wrapped(optax.sgd(0.1), every=1), tree(0)
    state, update = tx.init(params), jax.jit(tx.update)
    for seed in (1, 2):
        updates, state = update(tree(seed), state, params)
        params = optax.apply_updates(params, updates)
        jax.tree.map(np.testing.assert_array_equal, state.slow, params)


SHAPES = {"up": (8, 4), "bias": (8,)}
SPECS = {"up": P("fsdp", "tp"), "bias": P("tp")}


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_its_state_is_sharded_as_the_weights_are(kind, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    start, noise = (normal(SHAPES, seed) for seed in (0, 1))
    owners = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    want, _, _ = rollout(wrapped(om.muon(0.02)), start, noise, steps=4)
    tx = wrapped(om.muon(0.02, placement=owners))
    trees = [on_mesh(t, SPECS, mesh) for t in (start, noise)]
    got, state, _ = rollout(tx, *trees, steps=4)
    assert_same_path(got, want)
    said = om.state_specs(tx, trees[0])
    for field in ("slow", "momentum"):
        assert_specs(getattr(state, field), SPECS, mesh)
        assert getattr(said, field) == SPECS


@pytest.mark.broad
def test_rates_can_be_injected_and_changed():
    factory = om.inject_hyperparams(om.outer)
    tx = factory(optax.sgd(0.1), every=2, rate=RATE, momentum=MOMENTUM)
    params, update = tree(0), jax.jit(tx.update)
    state = tx.init(params)
    assert set(state.hyperparams) == {"rate", "momentum"}
    state.hyperparams["rate"] = jnp.float32(1.0)
    state.hyperparams["momentum"] = jnp.float32(0.0)
    for seed in (1, 2):
        updates, state = update(tree(seed), state, params)
    want, _ = optax.sgd(0.1).update(tree(2), optax.sgd(0.1).init(params), params)
    jax.tree.map(np.testing.assert_array_equal, updates, want)
    assert update._cache_size() == 1


@pytest.mark.broad
def test_steps_are_counted_where_gradients_are_accumulated():
    """Two gradients of a step each count once, and the sum is the step."""
    twice = lambda t: jax.tree.map(lambda x: 2 * x, tree(t))
    plain = wrapped(optax.sgd(0.1), every=2)
    steps = optax.MultiSteps(plain, 2).gradient_transformation()

    def run(tx, grads):
        params, state, update = tree(0), tx.init(tree(0)), jax.jit(tx.update)
        for g in grads:
            updates, state = update(g, state, params)
            params = optax.apply_updates(params, updates)
        return params

    want = run(plain, [tree(t) for t in (1, 2, 3)])
    zero = jax.tree.map(np.zeros_like, tree(0))
    got = run(steps, [g for t in (1, 2, 3) for g in (twice(t), zero)])
    near = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(near, got, want)


@pytest.mark.broad
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype):
    """The momentum is float32; all else has the dtype of the parameters."""
    params = tree(0, dtype)
    tx = wrapped(om.muon(0.02), every=2)
    state, update = tx.init(params), jax.jit(tx.update)
    types = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
    before = types(state)
    for seed in (1, 2, 3):
        updates, state = update(tree(seed, dtype), state, params)
        assert types(updates) == types(params)
        assert types(state) == before
        params = optax.apply_updates(params, updates)
    assert {x.dtype for x in jax.tree.leaves(state.momentum)} == {np.dtype("float32")}
    assert {x.dtype for x in jax.tree.leaves(state.slow)} == {np.dtype(dtype)}


@pytest.mark.usefixtures("x64")
def test_updates_wider_than_their_weights():
    """`optax.apply_updates` takes them, too; no state changes its dtype."""
    widen = lambda updates, _: jax.tree.map(lambda x: x.astype(np.float64), updates)
    tx, params = wrapped(optax.stateless(widen)), {"w": np.ones((2, 3), np.float32)}
    state = jax.eval_shape(tx.init, params)
    updates, new = jax.eval_shape(tx.update, params, state, params)
    assert updates["w"].dtype == np.float64
    types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert types(new) == types(state)


@pytest.mark.broad
def test_remainders_around_it_are_those_of_its_weights():
    """bfloat16 weights with their other bits move as float32 ones."""
    fine = jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree(0))
    wide = jax.tree.map(lambda x: x.astype(np.float32), fine)
    grads = [jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree(t)) for t in (1, 2, 3)]
    ends = []
    for tx, params in (
        (om.weights.store_remainders(wrapped(optax.sgd(0.01), every=2)), fine),
        (wrapped(optax.sgd(0.01), every=2), wide),
    ):
        state, update = tx.init(params), jax.jit(tx.update)
        for g in grads:
            g = jax.tree.map(lambda x, w: x.astype(w.dtype), g, params)
            updates, state = update(g, state, params)
            params = optax.apply_updates(params, updates)
        ends.append(params)
    near = lambda x, y: np.testing.assert_allclose(np.float32(x), y, rtol=2.0**-8)
    jax.tree.map(near, *ends)
    slow = jax.tree.leaves(state.slow)
    assert {x.dtype for x in slow} == {np.dtype("float32")}


@pytest.mark.broad
def test_a_step_that_is_not_finite_is_left_out_by_optax():
    tx = optax.apply_if_finite(wrapped(optax.sgd(0.1), every=1), 3)
    params = tree(0)
    state, update = tx.init(params), jax.jit(tx.update)
    bad = jax.tree.map(lambda x: np.full_like(x, np.nan), tree(1))
    updates, new = update(bad, state, params)
    assert not any(np.any(x) for x in jax.tree.leaves(updates))
    slow = (state.inner_state.slow, new.inner_state.slow)
    jax.tree.map(np.testing.assert_array_equal, *slow)


def test_mistakes_are_told():
    params = {"w": np.ones((3, 4), np.float32)}
    inside = {
        "om.average_weights": om.average_weights(optax.sgd(0.1)),
        "optax.contrib.schedule_free": optax.contrib.schedule_free_sgd(0.1),
        "om.weights.store_remainders": om.weights.store_remainders(optax.sgd(0.1)),
        "om.weights.stochastic_rounding": om.weights.stochastic_rounding(
            optax.sgd(0.1)
        ),
    }
    for name, inner in inside.items():
        with pytest.raises(ValueError, match=f"`inner` must not have {name} inside"):
            jax.eval_shape(om.outer(inner).init, params)
    tx = om.outer(optax.sgd(0.1))
    state = jax.eval_shape(tx.init, params)
    with pytest.raises(ValueError, match="because the weights are stepped from"):
        tx.update(params, state)
    for name, value in (("every", 0), ("rate", 0.0), ("momentum", 1.0)):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            om.outer(optax.sgd(0.1), **{name: value})
    with pytest.raises(ValueError, match="`inner` must be a gradient transformation"):
        om.outer(0.1)
