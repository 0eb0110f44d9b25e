"""Four-bit codes against their maps in NumPy float64, and states that hold them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import strict
from _meshes import KINDS, make_mesh
from _owned import assert_same_path, given, normal, on_mesh, rollout
from _reference.quantization import E2M1, rounded_to_four
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.quantization import quantize_state
from optax_matrix.quantization._four_bits import dequantize_from_four, quantize_to_four

SHAPE = (2, 6, 9)  # Of two matrices, with an odd number of columns.
signs = pytest.mark.parametrize("signed", [True, False])


def spread(seed=0, signed=True):
    """Normal numbers of rows and columns of very different sizes."""
    rng = np.random.default_rng(seed)
    rows, columns = (10 ** rng.uniform(-4, 4, (2, *s)) for s in ((6, 1), (1, 9)))
    x = (rng.standard_normal(SHAPE) * rows * columns).astype(np.float32)
    return x if signed else np.abs(x)


@functools.cache
def compiled(signed):
    @jax.jit
    def there_and_back(x, noise=None):
        codes, scales = quantize_to_four(x, signed=signed, batch_axes=1, noise=noise)
        return codes, scales, dequantize_from_four(codes, scales, signed=signed)

    return there_and_back


@signs
def test_rounds_to_the_nearest_value(signed):
    x = spread(signed=signed)
    codes, scales, got = jax.device_get(compiled(signed)(x))
    assert (codes.dtype, codes.shape, scales.shape) == (np.uint8, (2, 6, 5), (2, 15))
    np.testing.assert_allclose(got, rounded_to_four(x, signed), rtol=1e-6)
    np.testing.assert_array_equal(scales[:, :6], np.abs(x).max(-1))
    np.testing.assert_array_equal(scales[:, 6:], np.abs(x).max(-2))


@signs
def test_all_codes_are_used_and_in_order(signed):
    values = np.r_[E2M1, -E2M1[1:]] if signed else np.arange(1, 17) / 16
    x = np.stack([values, np.ones_like(values)])[None].astype(np.float32)
    with strict():
        _, _, got = jax.device_get(compiled(signed)(x))
    np.testing.assert_allclose(got, x, rtol=1e-6)


@signs
@pytest.mark.broad
def test_numbers_that_were_rounded_stay(signed):
    """Bit for bit; with ``old``, also codes and scales of matrices that are equal."""
    codes, scales, got = compiled(signed)(spread(signed=signed))
    again, scales_again, got_again = compiled(signed)(got)
    np.testing.assert_array_equal(again, codes)
    np.testing.assert_array_equal(scales_again, scales)
    np.testing.assert_array_equal(got_again, got)
    options = {"signed": signed, "batch_axes": 1, "old": (codes, scales)}
    new = jnp.asarray(got).at[1].multiply(0.5)
    held = jax.jit(functools.partial(quantize_to_four, **options))(new)
    for kept, before in zip(held, (codes, scales), strict=True):
        np.testing.assert_array_equal(kept[0], before[0])
    assert (held[1][1] != scales[1]).any()


@signs
@pytest.mark.broad
def test_zeros_and_extremes(signed):
    back = lambda x: np.asarray(compiled(signed)(jnp.asarray(x, jnp.float32))[2])
    np.testing.assert_array_equal(back(np.zeros(SHAPE)), 0)
    x = spread(signed=signed) / 1e4
    x[:, 2] = 0
    x[:, :, 3] = 0
    got = back(x)
    assert not got[:, 2].any()
    assert not got[:, :, 3].any()
    if not signed:
        assert (got > 0).sum() == 2 * 5 * 8
    for size in (1e-20, 1e20):
        np.testing.assert_allclose(back(size * x) / np.float32(size), got, rtol=1e-5)
    assert np.isfinite(back(np.full(SHAPE, np.inf))).all()
    x[0, 0, 0] = np.nan
    got = back(x)
    assert np.isnan(got[0, 0]).all()
    assert np.isnan(got[0, :, 0]).all()
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3)])
def test_arrays_without_numbers(shape):
    codes, scales = jax.eval_shape(quantize_to_four, jnp.zeros(shape))
    assert codes.shape == (*shape[:-1], -(-shape[-1] // 2))
    assert jax.eval_shape(dequantize_from_four, codes, scales).shape == shape


@pytest.mark.broad
def test_stochastic_rounding_is_right_in_the_mean():
    x = np.full((2, 200, 200), 0.22, np.float32)
    x[:, 0], x[:, :, 0] = 1, 1
    noise = np.random.default_rng(0).uniform(size=x.shape).astype(np.float32)
    got = np.asarray(compiled(True)(x, noise)[2])[:, 1:, 1:]
    assert {*np.unique(got)} == {np.float32(1 / 6), np.float32(1 / 4)}
    assert abs(got.mean() - 0.22) < 4 * (1 / 24) / np.sqrt(got.size)


def draw(seed):
    rng = np.random.default_rng(seed)
    shapes = {"w": (64, 128), "odd": (64, 65), "conv": (3, 40, 50), "b": (5000,)}
    return {k: rng.standard_normal(s, np.float32) for k, s in shapes.items()}


@pytest.mark.broad
def test_what_is_stored_how():
    """Half a byte a number, and four for each row and column; vectors in eight bits."""
    tx = quantize_state(optax.scale_by_adam(), bits=4)
    state = jax.eval_shape(tx.init, draw(0))
    shapes = {k: x.shape for k, x in state.inner_state.mu.items()}
    assert shapes == {"w": (64, 64), "odd": (64, 33), "conv": (3, 40, 25), "b": (5000,)}
    assert {x.dtype.name for x in jax.tree.leaves(state.inner_state.mu)} == {"uint8"}
    four, eight = (
        {k: x.shape for k, x in state.scales[label]["nu"].items()}
        for label in ("unsigned_rows_columns", "unsigned_256")
    )
    assert four == {"w": (192,), "odd": (129,), "conv": (170,)}
    assert eight == {"b": (20,)}
    shape = {"kernel": jax.ShapeDtypeStruct((4096, 1024), jnp.float32)}
    tx = om.muon(1e-3, placement=om.quantized(bits=4))
    bytes_ = om.diagnostics.state_bytes(tx, shape).bytes
    assert bytes_ / (4096 * 1024) == pytest.approx(0.5 + 4 / 4096 + 4 / 1024, rel=1e-4)


@pytest.mark.broad
def test_adam_follows_numpy():
    tx = quantize_state(optax.scale_by_adam(), bits=4, min_size=1)
    grads = [{"w": draw(seed)["odd"]} for seed in range(3)]
    state, update = tx.init(grads[0]), jax.jit(tx.update)
    m = v = np.zeros((64, 65))
    for t, g in enumerate(grads, 1):
        updates, state = update(g, state)
        g = np.float64(g["w"])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        want = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        close = np.isclose(updates["w"], want, rtol=1e-4, atol=1e-5)
        assert close.mean() > 0.995  # Float32 may round to the other side.
        m, v = rounded_to_four(m, True), rounded_to_four(v, False)


def test_states_of_other_bits_are_refused():
    four, eight = (quantize_state(optax.scale_by_adam(), bits=b) for b in (4, 8))
    held = jax.eval_shape(eight.init, draw(0))
    with pytest.raises(ValueError, match=r"must hold mu/\S* as signed_rows_columns"):
        jax.eval_shape(four.update, draw(0), held)
    with pytest.raises(ValueError, match="`bits` must be 4 or 8, got 2"):
        om.quantized(bits=2)


PLACED = {"a/0": (8, 12), "a/1": (8, 12), "b": (8, 8)}
SPECS = {"a/0": P("fsdp", "tp"), "a/1": P("fsdp", "tp"), "b": P("tp", None)}


def placed(placement=None, bits=4, **options):
    held = om.quantized(placement, bits=bits, min_size=64, **options)
    return om.on_matrices(optax.scale_by_adam(0.9, 0.99), placement=held)


@pytest.mark.broad
def test_portable_state_is_restored_in_any_number_of_bits():
    old, noise = (normal(PLACED, seed) for seed in (0, 1))
    four, eight, plain = placed(), placed(bits=8, block_size=16), placed()
    plain = om.on_matrices(optax.scale_by_adam(0.9, 0.99))
    _, state, _ = rollout(four, old, noise)
    portable = {k: np.asarray(v) for k, v in om.to_portable(state, old).items()}
    assert portable["inner_state/mu/b"].shape == (1, 8, 4)
    want, _, _ = rollout(four, old, noise, steps=1, state=state)
    for tx, error in ((four, 0), (plain, 0.05), (eight, 0.1)):
        filled = om.from_portable(portable, tx.init(old), old)
        got, _, _ = rollout(tx, old, noise, steps=1, state=filled)
        for path, x in want[-1].items():
            np.testing.assert_allclose(got[-1][path], x, atol=error)
    back = om.from_portable(om.to_portable(plain.init(old), old), four.init(old), old)
    assert jax.tree.structure(back) == jax.tree.structure(state)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "owned", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["owners", "as"]
)
def test_on_a_mesh(kind, owned, cpus):
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    owners = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))
    trees = [normal(PLACED, seed) for seed in (0, 1)]
    want, _, _ = rollout(placed(seed=0), *trees)
    tx = placed(owners if owned else None, seed=0)
    sharded = [on_mesh(t, SPECS, mesh) for t in trees]
    places = om.state_specs(
        tx, sharded[0], {k: NamedSharding(mesh, s) for k, s in SPECS.items()}
    )
    got, new, _ = rollout(tx, *sharded)
    assert jax.tree.structure(places) == jax.tree.structure(new)
    for a, b in zip(got, want, strict=True):
        for path, x in b.items():
            assert np.isclose(a[path], x, rtol=1e-5, atol=1e-6).mean() > 0.98, path


@pytest.mark.broad
def test_optax_on_explicit_axes(cpus):
    """Codes lie as the moments; an odd number of columns in a shard is refused."""
    mesh = make_mesh("fsdp4-tp2", "explicit", cpus)
    tx = quantize_state(optax.scale_by_adam(), bits=4, min_size=1)
    start, noise = (normal({"w": (8, 12)}, seed) for seed in (0, 1))
    want, _, _ = rollout(tx, start, noise)
    specs = {"w": P("fsdp", "tp")}
    sharded = [on_mesh(t, specs, mesh) for t in (start, noise)]
    got, state, _ = rollout(tx, *sharded)
    assert_same_path(got, want, rtol=1e-4)
    assert jax.typeof(state.inner_state.mu["w"]).sharding.spec == specs["w"]
    odd = on_mesh(normal({"w": (8, 6)}, 0), specs, mesh)
    with pytest.raises(ValueError, match="`bits` must be 8 where a shard"):
        tx.init(odd)


@pytest.mark.broad
def test_rates_are_injected_and_half_precision_moves():
    tx = om.inject_hyperparams(om.muon)(
        1e-2, placement=om.quantized(bits=4, min_size=1)
    )
    params = {"kernel": jnp.asarray(draw(0)["w"], jnp.bfloat16)}
    state, update = tx.init(params), jax.jit(tx.update)
    for seed in (1, 2):
        g = {"kernel": jnp.asarray(draw(seed)["w"], jnp.bfloat16)}
        updates, state = update(g, state, params)
    assert updates["kernel"].dtype == jnp.bfloat16
    assert np.isfinite(np.float32(updates["kernel"])).all()
    assert update._cache_size() == 1
