"""Sizes of updates, the growth limiter and the MARS correction, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _steps import first_update

from optax_matrix.linalg import polar_svd
from optax_matrix.transforms import (
    correct_variance,
    in_float32,
    limit_norm_growth,
    match_rms,
    orthogonalize,
    preserve_norm,
    scale_by_shape,
)
from optax_matrix.transforms.wrappers._precision import keep_dtype

RNG = np.random.default_rng(0)
STACK = RNG.standard_normal((3, 4, 6)).astype(np.float32)


def apply(tx, x):
    return first_update(tx, {"w": x})[0]["w"]


@pytest.mark.parametrize(
    ("rule", "shape", "factor"),
    [
        ("out/in", (8, 2), 2.0),
        ("out/in", (2, 8), 1.0),
        ("unclipped", (2, 8), 0.5),
        ("max", (4, 25), 1.0),
        ("max", (25, 4), 1.0),
        ("none", (8, 2), 1.0),
        (lambda rows, cols: rows + cols / 10, (8, 2), 8.2),
    ],
)
def test_scale_by_shape(rule, shape, factor):
    x = np.ones((2, *shape), np.float32)
    np.testing.assert_allclose(apply(scale_by_shape(rule), x), factor * x, rtol=1e-6)


@pytest.mark.parametrize("factor", [1e-20, 1.0, 1e20])
def test_match_rms_at_every_scale(factor):
    out = apply(match_rms(0.2), np.float32(factor) * STACK)
    rms = np.sqrt(np.mean(out.astype(np.float64) ** 2, axis=(-2, -1)))
    np.testing.assert_allclose(rms, 0.2, rtol=1e-6)


def test_match_rms_leaves_zero_alone():
    np.testing.assert_array_equal(apply(match_rms(), 0 * STACK), 0)


def test_preserve_norm_keeps_the_norm_and_the_direction():
    out = apply(preserve_norm(optax.scale_by_sign()), STACK)
    norm = lambda x: np.linalg.norm(x, axis=(-2, -1))
    np.testing.assert_allclose(norm(out), norm(STACK), rtol=1e-6)
    np.testing.assert_array_equal(np.sign(out), np.sign(STACK))


@pytest.mark.broad
def test_orthogonalize_applies_the_kernel():
    np.testing.assert_allclose(
        apply(orthogonalize(polar_svd), STACK), jax.jit(polar_svd)(STACK)
    )


def limited(norms, max_growth=1.5, **options):
    """Norms out of the limiter for one matrix whose norms go in."""
    tx = limit_norm_growth(max_growth, **options)
    unit = np.float32([[0.6, 0.0], [0.0, 0.8]])[None]
    state, out = tx.init({"w": np.zeros((1, 2, 2), np.float32)}), []
    update = jax.jit(tx.update)
    for norm in norms:
        updates, state = update({"w": np.float32(norm) * unit}, state)
        out.append(float(np.linalg.norm(np.asarray(updates["w"], np.float64))))
    return out, float(state.norm["w"][0, 0, 0])


def test_growth_is_limited_and_shrinking_is_not():
    out, last = limited([2.0, 9.0, 9.0, 1.0, 1.2, 9.0])
    np.testing.assert_allclose(out, [2.0, 3.0, 4.5, 1.0, 1.2, 1.8], rtol=1e-6)
    assert last == pytest.approx(1.8)


def test_remembered_norm_falls_by_a_factor_at_most():
    norms = [8.0, 1e-20, 0.5, 9.0, 9.0]  # Remembered: 8, 4, 2, 3, 4.5.
    out, last = limited(norms)
    np.testing.assert_allclose(out, [8.0, 1e-20, 0.5, 3.0, 4.5], rtol=1e-6)
    assert last == pytest.approx(4.5)
    out, _ = limited(norms, max_shrink=4.0)  # 8, 2, 0.5, 0.75, 1.125
    np.testing.assert_allclose(out, [8.0, 1e-20, 0.5, 0.75, 1.125], rtol=1e-6)


def test_paper_forgets_the_norm_at_once():
    out, last = limited([8.0, 1e-20, 9.0, 9.0], max_shrink=None)
    np.testing.assert_allclose(out, [8.0, 1e-20, 1.5e-20, 2.25e-20], rtol=1e-5)
    assert last == pytest.approx(2.25e-20)


def test_first_update_passes():
    assert limited([7.0])[0] == pytest.approx([7.0])


def test_zero_passes_and_keeps_the_limit():
    out, _ = limited([2.0, 0.0, 9.0])
    np.testing.assert_allclose(out, [2.0, 0.0, 3.0], rtol=1e-6)


def test_zero_start_does_not_limit():
    out, _ = limited([0.0, 9.0, 99.0])
    np.testing.assert_allclose(out, [0.0, 9.0, 13.5], rtol=1e-6)


def test_limit_survives_forty_orders_of_magnitude():
    out, last = limited([1e-20, 1e20, 1e20])
    np.testing.assert_allclose(out, [1e-20, 1.5e-20, 2.25e-20], rtol=1e-5)
    assert last == pytest.approx(2.25e-20)


def test_each_matrix_has_its_own_limit():
    tx = limit_norm_growth(1.5)
    _, state = first_update(tx, {"w": STACK})
    grown = STACK * np.float32([1, 2, 1])[:, None, None]
    updates, _ = jax.jit(tx.update)({"w": grown}, state)
    expected = STACK * np.float32([1, 1.5, 1])[:, None, None]
    np.testing.assert_allclose(updates["w"], expected, rtol=1e-6)


def test_correct_variance_in_closed_form():
    gamma, b1 = 0.1, 0.8
    tx = correct_variance(gamma, b1, max_norm=None)
    first, second = STACK, STACK[::-1].copy()
    one, state = first_update(tx, {"w": first})
    two, state = jax.jit(tx.update)({"w": second}, state)
    np.testing.assert_allclose(one["w"], (1 + 0.4) * first, rtol=1e-6)
    np.testing.assert_allclose(
        two["w"], second + 0.4 * (second - first), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(state.last["w"], second)


def test_correct_variance_clips_each_matrix():
    scaled = STACK * np.float32([1e-3, 1, 1e20])[:, None, None]
    out = apply(correct_variance(0.0, 0.9, max_norm=2.0), scaled)
    norms = np.linalg.norm(out.astype(np.float64), axis=(-2, -1))
    np.testing.assert_allclose(norms[1:], 2.0, rtol=1e-6)
    np.testing.assert_allclose(out[0], scaled[0], rtol=1e-6)


def test_correct_variance_stores_the_dtype_asked_for():
    tx = correct_variance(accumulator_dtype=jnp.bfloat16)
    updates, state = first_update(tx, {"w": STACK})
    assert state.last["w"].dtype == jnp.bfloat16
    assert updates["w"].dtype == jnp.float32


def test_in_float32_keeps_a_slow_average_moving():
    ones = {"w": np.ones((1, 2, 2), jnp.bfloat16)}

    def second_moment(tx):
        def run(x):
            step = lambda state, _: (tx.update(x, state)[1], None)
            return jax.lax.scan(step, tx.init(x), length=2000)[0].nu["w"]

        return float(np.asarray(jax.jit(run)(ones))[0, 0, 0])

    slow = optax.scale_by_rms(0.999)
    expected = 1 - 0.999**2000
    assert second_moment(in_float32(slow)) == pytest.approx(expected, rel=1e-3)
    assert second_moment(slow) < 0.8 * expected  # what bfloat16 does by itself
    updates, _ = first_update(in_float32(slow), ones)
    assert updates["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale_by_shape("fan"), "`rule` must be one of 'out/in'"),
        (lambda: match_rms(0.0), "`target` must be positive"),
        (lambda: limit_norm_growth(-1.0), "`max_growth` must be at least 1"),
        (lambda: limit_norm_growth(max_shrink=0.5), "`max_shrink` must be at least 1"),
        (lambda: orthogonalize("svd"), "`polar` must be a function"),
        (lambda: scale_by_shape(["max"]), r"`rule` must be one of .*\['max'\]"),
        (lambda: match_rms("0.2"), "`target` must be a number and must be positive"),
        (lambda: match_rms(optax.constant_schedule(1.0)), "om.inject_hyperparams"),
        (lambda: correct_variance(max_norm="1"), "`max_norm` must be a number and"),
        (
            lambda: correct_variance(accumulator_dtype=jnp.int8),
            "`accumulator_dtype` must be a floating dtype",
        ),
        (lambda: preserve_norm(0.1), "`inner` must be a gradient transformation"),
        (lambda: in_float32(None), "`inner` must be a gradient transformation"),
        (lambda: keep_dtype(optax.adam), "`inner` must be a gradient transformation"),
        (lambda: correct_variance(-0.1), "`gamma` must not be negative"),
        (lambda: correct_variance(b1=1.0), "`b1` must be in"),
        (lambda: correct_variance(max_norm=0.0), "`max_norm` must be positive"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


BLOCKS = {
    "scale_by_shape": scale_by_shape("max"),
    "match_rms": match_rms(),
    "preserve_norm": preserve_norm(optax.scale_by_sign()),
    "limit_norm_growth": limit_norm_growth(),
    "correct_variance": correct_variance(),
    "in_float32": in_float32(optax.scale_by_rms()),
    "keep_dtype": keep_dtype(optax.scale(np.float32(0.5))),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_keeps_dtypes_and_swallows_extra_args(name):
    tx = BLOCKS[name]
    for dtype in (jnp.bfloat16, jnp.float32):
        w = {"w": np.asarray(STACK, dtype)}
        state = jax.eval_shape(tx.init, w)
        step = lambda w, state: tx.update(w, state, w, loss=1.0)
        updates, new_state = jax.eval_shape(step, w, state)
        assert updates["w"].dtype == dtype
        shape = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
        assert shape(new_state) == shape(state)
