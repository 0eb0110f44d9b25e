"""bfloat16 weights: rounded at random without bias, or exact with remainders."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from ml_dtypes import bfloat16

import optax_matrix as om

WRAPPERS = {
    "random": om.weights.stochastic_rounding,
    "int16": om.weights.store_remainders,
    "int8": lambda tx: om.weights.store_remainders(tx, dtype="int8"),
}
every = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def tree(seed, dtype=jnp.bfloat16, scale=1.0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(scale * rng.standard_normal(shape), dtype)
    return {"up": {"kernel": draw(16, 24), "bias": draw(24)}, "down": draw(24, 16)}


def constant(updates):
    """An optimizer whose updates are these."""
    return optax.stateless(lambda _, __: updates)


def neighbours(x):
    """The bfloat16 numbers around float64 x, by counting in their bits."""
    bits = np.asarray(x, np.float32).view(np.uint32) & 0xFFFF0000
    both = np.stack([bits, bits + 0x10000]).view(np.float32).astype(np.float64)
    return np.sort(both, axis=0)


def test_each_weight_is_a_neighbour_and_the_mean_is_exact():
    weights = {"w": jnp.asarray([[1.0, -1.0, 0.37, 3e-5, -2e30, 0.0]], jnp.bfloat16)}
    steps = {"w": jnp.asarray([[1e-3, 3e-4, -2e-4, 3.3e-8, 4e26, -1e-12]])}
    tx = om.weights.stochastic_rounding(constant(steps))
    step = jax.jit(lambda s: tx.update(steps, s, weights))
    state, draws = tx.init(weights), []
    for _ in range(4000):
        updates, state = step(state)
        draws.append(optax.apply_updates(weights, updates)["w"])
    draws = np.asarray(draws).astype(np.float64)
    target = np.asarray(weights["w"].astype(jnp.float32) + steps["w"], np.float64)
    low, high = neighbours(target)
    assert np.all((draws == low) | (draws == high))
    share = (target - low) / (high - low)
    deviation = np.sqrt(share * (1 - share) / len(draws)) * (high - low)
    error = np.abs(draws.mean(0) - target)
    assert np.all(error <= 4.5 * deviation + 1e-6 * np.abs(target))
    assert np.all((draws == low).any(0) & (draws == high).any(0))


@pytest.mark.parametrize("dtype", ["int16", "int8"])
def test_remainders_are_the_rest_of_a_float(dtype):
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.uniform(-30, 30, (64, 64))
    x = (rng.standard_normal((64, 64)) * size).astype(np.float32)
    weights = {"w": jnp.zeros((64, 64), jnp.bfloat16)}
    tx = om.weights.store_remainders(constant({"w": jnp.asarray(x)}), dtype=dtype)
    updates, state = tx.update(weights, tx.init(weights), weights)
    new = optax.apply_updates(weights, updates)
    np.testing.assert_array_equal(np.asarray(new["w"]), x.astype(bfloat16))
    # What the next step starts from.
    seen = []
    look = optax.stateless(lambda g, p: seen.append(p["w"]) or g)
    om.weights.store_remainders(look, dtype=dtype).update(weights, state, new)
    tolerance = 0 if dtype == "int16" else 2.0**-15
    np.testing.assert_allclose(np.asarray(seen[0]), x, rtol=tolerance)


@pytest.mark.parametrize("make", [lambda: optax.adamw(1e-3), lambda: om.muoneq(1e-3)])
def test_int16_remainders_train_as_float32_weights_do(make):
    half, whole = tree(0), tree(0, jnp.float32)
    whole = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), whole)
    tx, plain = om.weights.store_remainders(make()), make()
    state, other = tx.init(half), plain.init(whole)
    step, reference = jax.jit(tx.update), jax.jit(plain.update)
    for i in range(20):
        grads = tree(i + 1)
        updates, state = step(grads, state, half)
        half = optax.apply_updates(half, updates)
        wide = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
        updates, other = reference(wide, other, whole)
        whole = optax.apply_updates(whole, updates)
    nearest = jax.tree.map(lambda x: x.astype(jnp.bfloat16), whole)
    # An ulp of float32 at most where programs are fused differently.
    near = lambda x, y: np.testing.assert_allclose(
        np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2.0**-7, atol=1e-7
    )
    jax.tree.map(near, half, nearest)
    equal = [
        np.mean(np.asarray(x == y))
        for x, y in zip(jax.tree.leaves(half), jax.tree.leaves(nearest), strict=True)
    ]
    assert min(equal) > 0.98
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        jax.tree.leaves(state.inner_state),
        jax.tree.leaves(other),
    )


@every
def test_small_steps_add_up(wrap):
    """A constant gradient: rounded to nearest, weights of size one do not move."""
    start = jax.random.normal(jax.random.key(0), (32, 32))
    params = {"up": jnp.asarray(start, jnp.bfloat16)}
    grads = {"up": jax.random.normal(jax.random.key(1), (32, 32), jnp.bfloat16)}

    def moved(tx):
        def body(carry, _):
            p, s = carry
            u, s = tx.update(grads, s, p)
            return (optax.apply_updates(p, u), s), None

        run = lambda: jax.lax.scan(body, (params, tx.init(params)), None, 200)
        after = jax.jit(run)()[0][0]["up"]
        return np.asarray(after, np.float64) - np.asarray(params["up"], np.float64)

    inner = om.muon(2e-4, scaling="max", weight_decay=0.0)
    way = moved(wrap(inner))
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    target = 0
    state, tx = inner.init(wide), inner
    full = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
    update = jax.jit(tx.update)
    for _ in range(200):
        u, state = update(full, state, wide)
        target = target + np.asarray(u["up"], np.float64)
    along = lambda d: np.sum(d * target) / np.sum(target * target)
    assert along(way) == pytest.approx(1, abs=0.06)
    assert along(moved(inner)) < 0.5  # Without the wrapper most of the way is lost.


@pytest.mark.daily("AxisType.Explicit")
@every
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_same_on_any_mesh(wrap, kind):
    def two_steps(tx, params, grads):
        state = jax.jit(tx.init)(params)
        for _ in range(2):
            updates, state = jax.jit(tx.update)(grads, state, params)
            params = jax.jit(optax.apply_updates)(params, updates)
        return params

    params, grads = tree(0), tree(1)
    alone = two_steps(wrap(om.muoneq(1e-2)), params, grads)
    mesh = jax.make_mesh((4,), ("fsdp",), (kind,))
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("fsdp")))
    with jax.set_mesh(mesh):
        params, grads = jax.tree.map(put, params), jax.tree.map(put, grads)
        placement = om.owners.from_params(params, "fsdp")
        shared = two_steps(wrap(om.muoneq(1e-2, placement=placement)), params, grads)
    differ = [
        np.mean(np.asarray(x) != np.asarray(y))
        for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True)
    ]
    assert max(differ) < 0.02  # Sums in another order may cross a boundary.
    # Without sums every bit is the same.
    alone = two_steps(wrap(optax.sgd(1e-3)), tree(0), tree(1))
    with jax.set_mesh(mesh):
        shared = two_steps(wrap(optax.sgd(1e-3)), params, grads)
    jax.tree.map(np.testing.assert_array_equal, alone, shared)


@every
def test_in_an_nnx_optimizer_and_after_a_restart(wrap):
    def run(stops):
        layer = nnx.Linear(8, 16, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(layer, wrap(om.muoneq(1e-3)), wrt=nnx.Param)

        @nnx.jit
        def step(layer, optimizer, x):
            grads = nnx.grad(lambda m: jnp.mean(m(x).astype(jnp.float32) ** 2))(layer)
            optimizer.update(layer, grads)

        for i in range(4):
            if i == 2 and stops:
                kept = jax.tree.map(np.asarray, nnx.state((layer, optimizer)))
                layer = nnx.Linear(8, 16, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(1))
                optimizer = nnx.Optimizer(layer, wrap(om.muoneq(1e-3)), wrt=nnx.Param)
                nnx.update((layer, optimizer), kept)
            step(layer, optimizer, jax.random.normal(jax.random.key(i), (4, 8)))
        return nnx.state(layer, nnx.Param)

    whole, resumed = run(False), run(True)
    same = lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    jax.tree.map(same, whole, resumed)
    assert whole["kernel"][...].dtype == jnp.bfloat16


@every
def test_in_a_train_state_with_donation(wrap):
    model = nn.Dense(16, param_dtype=jnp.bfloat16)
    params = model.init(jax.random.key(0), jnp.ones((1, 8)))
    tx = wrap(om.muoneq(1e-2))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def step(state, x):
        loss = lambda p: jnp.mean(state.apply_fn(p, x).astype(jnp.float32) ** 2)
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    step = jax.jit(step, donate_argnums=0)
    for i in range(3):
        state = step(state, jax.random.normal(jax.random.key(i), (4, 8)))
    kernel = state.params["params"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    assert np.isfinite(np.asarray(kernel, np.float32)).all()


@every
def test_float32_leaves_and_absent_updates_pass(wrap):
    params = {"up": jnp.ones((3, 4)), "frozen": jnp.ones(3, jnp.bfloat16)}
    tx = wrap(optax.stateless(lambda g, _: {"up": g["up"] * 2, "frozen": None}))
    updates, state = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates["up"], 2)
    assert updates["frozen"] is None
    tx.update(params, state, params)


@every
def test_a_weight_that_is_set_to_zero_or_not_finite(wrap):
    params = {"w": jnp.full((2, 2), 1.003, jnp.bfloat16)}
    tx = wrap(optax.sgd(1e-3))
    updates, state = tx.update(params, tx.init(params), params)
    pruned = {"w": jnp.zeros((2, 2), jnp.bfloat16)}
    updates, state = tx.update(params, state, pruned)
    new = optax.apply_updates(pruned, updates)["w"].astype(jnp.float32)
    np.testing.assert_allclose(new, -1.003e-3, rtol=0.01)
    bad = {"w": jnp.full((2, 2), jnp.nan, jnp.bfloat16)}
    updates, state = tx.update(bad, state, pruned)
    assert np.isnan(np.asarray(updates["w"])).all()
    updates, _ = tx.update(params, state, pruned)
    assert np.isfinite(np.asarray(updates["w"])).all()


@every
def test_bad_input_is_refused(wrap):
    with pytest.raises(ValueError, match="bfloat16 or at least float32, got float16"):
        wrap(optax.sgd(1.0)).init({"w": jnp.ones(2, jnp.float16)})
    params, tx = tree(0), wrap(optax.sgd(1.0))
    state = tx.init(params)
    with pytest.raises(ValueError, match="`params` must be passed"):
        tx.update(params, state)
    with pytest.raises(ValueError, match="`inner` must be"):
        wrap(3)


def test_weights_that_became_float32_are_refused():
    """As Equinox's own apply_updates makes them, whose remainders no longer count."""
    params, tx = tree(0), om.weights.store_remainders(optax.sgd(1.0))
    wide = jax.tree.map(lambda w: w.astype(jnp.float32), params)
    with pytest.raises(ValueError, match="`params` must be bfloat16 where `init` saw"):
        tx.update(wide, tx.init(params), wide)


def test_an_unknown_dtype_of_remainders_is_refused():
    with pytest.raises(ValueError, match="`seed` must be an int from 0"):
        om.weights.stochastic_rounding(optax.sgd(1.0), seed=-1)
    with pytest.raises(ValueError, match="`dtype` must be"):
        om.weights.store_remainders(optax.sgd(1.0), dtype="int4")  # pyright: ignore


def _around(names):
    return pytest.mark.parametrize("name", sorted(names))


def _around_a_recipe(wrap, name):
    params, grads = tree(0), tree(1)
    # The vectors of SPlus have a thousandth of its rate.
    tx = wrap(RECIPES[name](10.0 if name == "splus" else 0.1))
    updates, state = jax.jit(tx.update)(grads, jax.jit(tx.init)(params), params)
    new = optax.apply_updates(params, updates)
    for w, old in zip(jax.tree.leaves(new), jax.tree.leaves(params), strict=True):
        assert w.dtype == jnp.bfloat16
        assert np.isfinite(np.asarray(w, np.float32)).all()
        assert np.any(np.asarray(w != old))
    specs = om.state_specs(tx, params)
    assert jax.tree.structure(specs) == jax.tree.structure(state)


@pytest.mark.daily("muon")
@_around({"muon", "racs"})
@every
def test_around_a_recipe(wrap, name):
    _around_a_recipe(wrap, name)


@pytest.mark.slow
@_around(set(RECIPES) - {"muon", "racs"})
@pytest.mark.parametrize("wrap", [WRAPPERS["random"], WRAPPERS["int16"]])
def test_around_every_recipe(wrap, name):
    _around_a_recipe(wrap, name)
