"""Eight-bit state of optax's own optimizers."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _reference.quantization import rounded
from _steps import first_update
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.quantization import quantize_state
from optax_matrix.quantization.packing import QuantizedState

SHAPES = {"w": (64, 128), "odd": (50, 90), "b": (128,)}


def draw(seed, scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    normal = lambda shape: np.asarray(scale * rng.standard_normal(shape), dtype)
    return {name: normal(shape) for name, shape in SHAPES.items()}


PARAMS = draw(0)


@functools.cache
def adam(**options):
    tx = quantize_state(optax.scale_by_adam(), **options)
    return tx, jax.jit(tx.update)


def bytes_of(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.broad
def test_what_is_stored_how():
    state = adam()[0].init(PARAMS)
    assert isinstance(state, QuantizedState)
    signs = {"mu": "signed_256", "nu": "unsigned_256"}
    for name, field in (("mu", state.inner_state.mu), ("nu", state.inner_state.nu)):
        kinds = {k: (x.shape, x.dtype.name) for k, x in field.items()}
        assert kinds == {
            "w": ((64, 128), "uint8"),
            "odd": ((50, 90), "uint8"),
            "b": ((128,), "float32"),  # Fewer than 4096 numbers.
        }
        shapes = {k: x.shape for k, x in state.scales[signs[name]][name].items()}
        assert shapes == {"w": (32,), "odd": (-(-4500 // 256),)}
    assert state.count is None
    counter = 4
    of_moment = 64 * 128 + 50 * 90 + 4 * 128 + 4 * (32 + 18)
    assert bytes_of(state) == counter + 2 * of_moment


@pytest.mark.broad
def test_blocks_of_2048():
    state = quantize_state(optax.trace(0.9), block_size=2048).init(PARAMS)
    shapes = {k: x.shape for k, x in state.scales["signed_2048"]["trace"].items()}
    assert shapes == {"w": (4,), "odd": (3,)}


@pytest.mark.parametrize(
    "options", [{"block_size": 128}, {"signed": ("nu",), "unsigned": ("mu",)}]
)
def test_codes_of_other_options_are_refused(options):
    """Blocks of 250 and 256 can have as many scales; nothing else tells them apart."""
    old = quantize_state(optax.scale_by_adam())
    new = quantize_state(optax.scale_by_adam(), **options)
    with pytest.raises(ValueError, match=r"`state` must hold mu/\S* as \S*signed_"):
        jax.eval_shape(new.update, PARAMS, jax.eval_shape(old.init, PARAMS))
    state = jax.eval_shape(old.init, PARAMS)
    older = state._replace(scales=state.scales["signed_256"])
    with pytest.raises(ValueError, match="another version of optax_matrix"):
        jax.eval_shape(old.update, PARAMS, older)


def test_fields_are_a_choice():
    tx = quantize_state(optax.scale_by_adam(), signed=(), min_size=0)
    state = jax.eval_shape(tx.init, PARAMS)
    assert {x.dtype.name for x in state.inner_state.mu.values()} == {"float32"}
    assert {x.dtype.name for x in state.inner_state.nu.values()} == {"uint8"}
    # A parameter of a field's name is no such field.
    tx = quantize_state(optax.scale_by_rss())
    with pytest.warns(UserWarning, match="stores nothing in fewer bits"):
        plain = jax.eval_shape(tx.init, {"mu": ones(64, 64)})
    assert plain.scales == {}


def numpy_adam_8bit(grads, b1=0.9, b2=0.999, eps=1e-8):
    """Adam with moments rounded by tests/linalg's own map after every step."""
    m = v = np.zeros_like(grads[0])
    for t, g in enumerate(grads, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        m, v = rounded(m, signed=True), rounded(v, signed=False)


@pytest.mark.broad
def test_follows_numpy_step_by_step():
    tx, update = adam()
    state = tx.init(PARAMS)
    grads = [draw(seed) for seed in range(3)]
    in_numpy = numpy_adam_8bit([np.float64(g["odd"]) for g in grads])
    for g, want in zip(grads, in_numpy, strict=True):
        updates, state = update(g, state)
        close = np.isclose(updates["odd"], want, rtol=1e-4, atol=1e-5)
        # f32 and f64 may round a number in the middle between two codes differently.
        assert close.mean() > 0.999


@pytest.mark.slow
def test_stays_near_adam_in_float32():
    """A quadratic of condition 100 with noise: the same path within a few percent."""
    curvature = jnp.asarray(np.geomspace(0.01, 1, 64 * 128).reshape(64, 128), "float32")

    def path(tx):
        def step(carry, key):
            w, state = carry
            noise = 0.1 * jax.random.normal(key, w.shape)
            updates, state = tx.update(curvature * w + noise, state, w)
            return (optax.apply_updates(w, updates), state), jnp.linalg.norm(w)

        w = jnp.ones((64, 128))
        keys = jax.random.split(jax.random.key(0), 100)
        (w, _), norms = jax.jit(lambda: jax.lax.scan(step, (w, tx.init(w)), keys))()
        return np.asarray(w), np.asarray(norms)

    exact, norms = path(optax.adam(0.02))
    assert norms[-1] < 0.5 * norms[0]
    for seed in (None, 0):
        got, got_norms = path(quantize_state(optax.adam(0.02), seed=seed))
        np.testing.assert_allclose(got_norms, norms, rtol=0.02)
        moved = np.linalg.norm(exact - 1)
        assert np.linalg.norm(got - exact) < 0.03 * moved


@pytest.mark.broad
def test_small_gradients_beside_large_ones_do_not_blow_up():
    """Their second moments are below the smallest code: zero would make steps of 30."""
    g = np.full((64, 64), 1e-4, np.float32)
    g[:, ::64] = 1.0
    tx, update = adam()
    state = tx.init(g)
    for _ in range(20):
        updates, state = update(g, state)
    assert np.abs(updates).max() < 1.1


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e20])
def test_extremes_are_finite_and_pass(scale):
    tx = quantize_state(optax.adam(1.0, b1=0.5, b2=0.5), min_size=0)
    update = jax.jit(tx.update)
    state, fresh = tx.init(PARAMS), tx.init(PARAMS)
    updates, state = update(draw(1, scale), state)
    chex.assert_tree_all_finite(updates)
    chex.assert_tree_all_finite(state)
    for seed in range(150):  # The square of 1e20 counts as 2**126: 126 halvings.
        grads = draw(2 + seed)
        got, state = update(grads, state)
        want, fresh = update(grads, fresh)
    for name in ("w", "odd"):
        # What is left of it may move a number over to the neighbouring code.
        np.testing.assert_allclose(got[name], want[name], atol=0.05)


@pytest.mark.broad
def test_contract():
    """One compilation: stable types, dtype of the parameters, donation, optax's map."""
    params = draw(0, dtype=jnp.bfloat16)
    tx = quantize_state(optax.adamw(1e-3), seed=3)
    state = tx.init(params)
    shapes = jax.eval_shape(tx.init, jax.eval_shape(lambda: params))
    of_type = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
    assert of_type(shapes) == of_type(state)
    marked = optax.tree.map_params(tx, lambda x: x + 1, state)
    assert (marked.inner_state[0].mu["w"] == state.inner_state[0].mu["w"] + 1).all()
    chex.assert_trees_all_equal(marked.scales, state.scales)

    update = jax.jit(tx.update, donate_argnums=1)
    types = jax.tree.map(jax.typeof, state)
    for seed in (1, 2):
        old = state
        updates, state = update(draw(seed, dtype=jnp.bfloat16), state, params)
        assert old.inner_state[0].mu["w"].is_deleted()
        chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)
        assert jax.tree.map(jax.typeof, state) == types
    assert update._cache_size() == 1
    assert state.count == 2


@pytest.mark.broad
def test_masked_and_partitioned_leaves_are_absent():
    frozen = optax.partition(
        {"train": optax.adam(1e-3), "freeze": optax.set_to_zero()},
        {"w": "train", "odd": "freeze", "b": "train"},
    )
    tx = quantize_state(frozen)
    state = tx.init(PARAMS)
    updates, state = jax.jit(tx.update)(draw(1), state, PARAMS)
    assert not updates["odd"].any()
    assert bytes_of(state) == 4 + 2 * (64 * 128 + 4 * 32 + 4 * 128)


@pytest.mark.broad
def test_stochastic_rounding_differs_by_step_leaf_and_seed():
    g = {"a": jnp.linspace(0, 1, 4096), "b": jnp.linspace(0, 1, 4096)}
    codes = {}
    for seed in (0, 1):
        tx, update = adam(seed=seed)
        _, state = update(g, tx.init(g))
        codes[seed] = state.inner_state.mu
    assert (codes[0]["a"] != codes[0]["b"]).any()
    assert (codes[0]["a"] != codes[1]["a"]).any()
    _, later = update(g, tx.init(g)._replace(count=jnp.int32(5)))
    assert (codes[1]["a"] != later.inner_state.mu["a"]).any()
    spread = jnp.abs(codes[0]["a"].astype(int) - codes[1]["a"].astype(int))
    assert spread.max() == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_sharded_parameters(kind, cpus):
    """Codes lie as their parameters, and the numbers are those of one device."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (kind, kind), devices=cpus)
    specs = {"w": P("fsdp", "tp"), "b": P("tp")}
    put = lambda tree: {
        k: jax.device_put(tree[k], NamedSharding(mesh, s)) for k, s in specs.items()
    }
    tx, update = adam(min_size=64, block_size=16)
    plain = {k: PARAMS[k] for k in specs}
    said = om.state_specs(tx, put(plain), specs)
    assert said.inner_state.mu == {"w": P("fsdp", "tp"), "b": P("tp")}
    want, want_state = update(draw(1) | {"odd": None}, tx.init(plain | {"odd": None}))
    got, state = update(put(draw(1)), tx.init(put(plain)))
    for name, spec in specs.items():
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)
        codes = state.inner_state.mu[name]
        np.testing.assert_array_equal(codes, want_state.inner_state.mu[name])
        assert codes.sharding.is_equivalent_to(NamedSharding(mesh, spec), codes.ndim)


def test_mistakes_are_told():
    adam_ = optax.scale_by_adam()
    with pytest.raises(ValueError, match="`inner` must be a gradient transformation"):
        quantize_state(optax.adam)
    with pytest.raises(ValueError, match="`signed` must be names"):
        quantize_state(adam_, signed="mu")
    with pytest.raises(ValueError, match=r"`unsigned` must not share .*'nu'"):
        quantize_state(adam_, signed=("nu",))
    with pytest.raises(ValueError, match="`block_size` must be a positive int"):
        quantize_state(adam_, block_size=0)
    with pytest.raises(ValueError, match="`seed` must be an int from 0"):
        quantize_state(adam_, seed=-1)
    with pytest.raises(ValueError, match=r"om\.quantized\(\)"):
        quantize_state(om.muon(1e-3)).init({"kernel": ones(64, 64)})


def test_a_state_without_known_fields_is_told():
    params = {"w": ones(64, 64), "b": ones(64)}
    with pytest.warns(UserWarning, match=r"\['g', 'm', 'n', 'v'\], is in `signed`"):
        jax.eval_shape(quantize_state(optax.adan(1e-3)).init, params)
    chosen = quantize_state(optax.adan(1e-3), signed=("m", "v"), unsigned=("n",))
    state = jax.eval_shape(chosen.init, params)
    assert state.inner_state[0].n["w"].dtype == jnp.uint8


def test_numbers_of_python_stay_as_they_are():
    class State(NamedTuple):
        count: int
        mu: Any

    inner = optax.GradientTransformation(
        lambda p: State(0, jax.tree.map(jnp.zeros_like, p)),
        lambda u, s, _=None: (u, State(s.count, u)),
    )
    params = {"w": ones(64, 64)}
    tx = quantize_state(inner)
    _, state = tx.update(params, tx.init(params), params)
    assert state.inner_state.mu["w"].dtype == jnp.uint8
    assert state.inner_state.count == 0


def test_a_quantized_placement_inside_stays_as_it_is():
    params = {"kernel": ones(64, 64)}
    plain = om.muon(0.1, placement=om.quantized())
    tx = quantize_state(plain)
    new, want = (first_update(t, params, params)[0] for t in (tx, plain))
    np.testing.assert_array_equal(new["kernel"], want["kernel"])


@pytest.mark.broad
@pytest.mark.daily("float16-1e-05", "bfloat16-1000.0")
@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_moves_as_float32_does(dtype, scale):
    """Squares of float16 gradients vanish below 2e-4 and overflow above 256.

    A rounded moment may get the next code, 4% away.
    """
    tx = om.adamw_8bit(1e-3)
    grads = draw(1, scale, dtype)
    wide = lambda tree: jax.tree.map(lambda x: x.astype(np.float32), tree)

    def run(grads, params):
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(grads, state, params)
        return updates

    params = draw(0, dtype=dtype)
    got, want = jax.jit(run)(grads, params), jax.jit(run)(wide(grads), wide(params))
    for path, x in got.items():
        assert x.dtype == dtype
        np.testing.assert_allclose(np.float32(x), want[path], rtol=5e-2, atol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("seed", [None, 0])
def test_a_moment_that_does_not_change_keeps_its_codes(seed):
    """Rounding -1 once more made it -0.993."""
    freeze = optax.GradientTransformation(
        optax.trace(0.9).init,
        lambda g, s, _: (g, s._replace(trace={**s.trace, "odd": g["odd"]})),
    )
    tx = quantize_state(freeze, seed=seed)
    put = quantize_state(optax.trace(0.9), seed=seed)
    _, state = put.update(PARAMS, put.init(PARAMS))
    _, new = jax.jit(tx.update)(draw(1), state)
    for before, after in (
        (state.inner_state.trace, new.inner_state.trace),
        tuple(s.scales["signed_256"]["trace"] for s in (state, new)),
    ):
        np.testing.assert_array_equal(before["w"], after["w"])
        assert (np.asarray(before["odd"]) != np.asarray(after["odd"])).mean() > 0.5


def test_complex_leaves_keep_their_imaginary_parts():
    x = np.asarray([1 + 2j, 1 - 1j], jnp.complex64)
    for tx in (
        quantize_state(optax.sgd(0.5)),
        om.transforms.in_float32(optax.sgd(0.5)),
    ):
        updates, _ = first_update(tx, {"w": x}, {"w": x})
        np.testing.assert_array_equal(updates["w"], -x / 2)


@pytest.mark.broad
def test_inverse_roots_have_signs():
    """Their field is that of second moments in other states, but they are matrices."""
    tx = om.mousse(0.1, placement=om.quantized(min_size=64))
    params = {"kernel": draw(0)["w"]}
    exact, states = om.mousse(0.1), []
    for each in (tx, exact):
        state, update = each.init(params), jax.jit(each.update)
        for seed in range(3):
            new, state = update({"kernel": draw(seed)["w"]}, state, params)
        states.append(np.asarray(new["kernel"]))
    error = np.linalg.norm(states[0] - states[1]) / np.linalg.norm(states[1])
    assert error < 0.1


@pytest.mark.broad
def test_fields_of_parameters_name_no_moments():
    """Of an encoder with a mean and a variance, where gradients are accumulated."""

    class Heads(NamedTuple):
        mu: Any
        nu: Any

    steps = optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation()
    tx = quantize_state(steps, min_size=64)
    state = tx.init(Heads(draw(0)["w"], draw(1)["w"]))
    held = state.inner_state
    kinds = lambda tree: {x.dtype.name for x in jax.tree.leaves(tree)}
    assert kinds(held.acc_grads) == {"float32"}
    assert kinds(held.inner_opt_state[0].mu) == {"uint8"}
