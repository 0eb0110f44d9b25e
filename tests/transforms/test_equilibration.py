"""Averaged scales: the closed form, the roots, the state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _steps import first_update

from optax_matrix.linalg import rank_one_scales, scale_rows
from optax_matrix.transforms import (
    equilibrate,
    equilibrate_with_ema,
    row_rms,
)


def matrices(steps=5, shape=(2, 3, 4), seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((steps, *shape)).astype(np.float32)


def run(tx, grads, dtype=jnp.float32):
    state = tx.init({"w": np.zeros(grads.shape[1:], dtype)})
    update, path = jax.jit(tx.update), []
    for g in grads:
        updates, state = update({"w": np.asarray(g, dtype)}, state)
        path.append(np.asarray(updates["w"], np.float64))
    return np.stack(path), state


@pytest.mark.parametrize("bias_correction", [False, True])
def test_rows_are_divided_by_the_root_of_the_average(bias_correction):
    grads, b = matrices(), 0.8
    path, state = run(
        equilibrate_with_ema(row_rms, b, bias_correction=bias_correction), grads
    )
    v = 0
    for t, g in enumerate(grads.astype(np.float64), start=1):
        v = b * v + (1 - b) * np.mean(g**2, axis=-1, keepdims=True)
        hat = v / (1 - b**t) if bias_correction else v
        np.testing.assert_allclose(path[t - 1], g / np.sqrt(hat), rtol=1e-5)
    np.testing.assert_allclose(state.row_scale["w"] ** 2, v[..., 0], rtol=1e-5)
    assert state.col_scale["w"] is None


@pytest.mark.broad
def test_matrices_of_a_stack_do_not_influence_one_another():
    grads = matrices()
    stacked, _ = run(equilibrate_with_ema(rank_one_scales, 0.9), grads)
    alone, _ = run(equilibrate_with_ema(rank_one_scales, 0.9), grads[:, 1:])
    np.testing.assert_allclose(stacked[:, 1:], alone, rtol=1e-6)


def test_state_is_float32_for_bfloat16_and_shaped_per_matrix():
    tx = equilibrate_with_ema(rank_one_scales, 0.9, bias_correction=True)
    path, state = run(tx, matrices(), jnp.bfloat16)
    shapes = {leaf.shape for leaf in jax.tree.leaves(state)}
    assert shapes == {(2, 3), (2, 4), (2,)}
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float32")}
    assert np.isfinite(path).all()


@pytest.mark.broad
def test_updates_keep_bfloat16():
    tx = equilibrate_with_ema(rank_one_scales, 0.9)
    w = {"w": np.ones((2, 3, 4), jnp.bfloat16)}
    updates, _ = jax.jit(tx.update)(w, tx.init(w))
    assert updates["w"].dtype == jnp.bfloat16


@pytest.mark.broad
def test_averages_neither_overflow_nor_vanish():
    grads = matrices(3)
    for factor in (1e20, 1e-20):
        path, state = run(
            equilibrate_with_ema(rank_one_scales, 0.9), np.float32(factor) * grads
        )
        base, _ = run(equilibrate_with_ema(rank_one_scales, 0.9), grads)
        np.testing.assert_allclose(path, base, rtol=1e-5)
        assert (np.asarray(state.col_scale["w"]) > 0).all()


def test_weight_of_a_matrix_counts_its_nonzero_gradients():
    grads = matrices(4)
    grads[1:, 0] = 0
    tx = equilibrate_with_ema(row_rms, 0.5, bias_correction=True)
    _, state = run(tx, grads)
    np.testing.assert_allclose(state.weight["w"], [1 - 0.5, 1 - 0.5**4])


@pytest.mark.broad
def test_missing_leaves_are_no_leaves():
    tree = {
        "w": np.ones((1, 2, 3), np.float32),
        "gone": optax.MaskedNode(),
        "none": None,
    }
    for tx in (equilibrate(scale_rows), equilibrate_with_ema(row_rms, 0.9)):
        updates, _ = first_update(tx, tree)
        assert jax.tree.structure(updates) == jax.tree.structure(tree)


@pytest.mark.broad
def test_decay_may_be_traced():
    w = {"w": jnp.asarray(matrices(1)[0])}

    @jax.jit
    def update(decay):
        tx = equilibrate_with_ema(row_rms, decay)
        return tx.update(w, tx.init(w))[0]["w"]

    tx = equilibrate_with_ema(row_rms, 0.75)
    expected = tx.update(w, tx.init(w))[0]["w"]
    np.testing.assert_allclose(update(0.75), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: equilibrate("rows"),
            "must be a function .*of `optax_matrix.linalg`.$",
        ),
        (lambda: equilibrate_with_ema("rows", 0.9), "`statistics` must be a function"),
        (lambda: equilibrate_with_ema(row_rms, 1.0), "`decay` must be in"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("sides", [1, 2])
def test_rows_are_bounded_by_the_usual_size_of_the_result(sides, corrected):
    """The formula of the docstring, with scales of rows only, too."""
    root = lambda x, axis: (x**2).mean(axis) ** 0.5
    both = lambda x: (root(x, -1), root(x, -2) if sides == 2 else None)
    tx = equilibrate_with_ema(both, 0.9, bias_correction=corrected, max_rms=1.0)
    rng, weight = np.random.default_rng(5), 0.0
    squares = [np.zeros((3, 1)), np.zeros((1, 5))]
    state, update = tx.init({"w": np.zeros((3, 5))}), jax.jit(tx.update)
    for size in (1, 8, 1, 4, 9, 3):
        g = size * rng.standard_normal((3, 5))
        weight = 0.9 * weight + 0.1
        new = [root(g, axis)[..., None] ** 2 for axis in (1, 0)]
        squares = [
            0.9 * s + 0.1 * x.reshape(s.shape)
            for s, x in zip(squares, new, strict=True)
        ]
        q, s = (x / (weight if corrected else 1.0) for x in squares)
        s = s if sides == 2 else np.ones_like(s)
        x = g / np.sqrt(q * s)
        usual = np.sqrt((q**2 * s**2 * x**2).sum() / (q**2).sum() / (s**2).sum())
        rows = root(x, 1)[:, None]
        want = x * np.minimum(1, np.clip(usual, 1, 10) / rows)
        got, state = update({"w": np.asarray(g)}, state)
        np.testing.assert_allclose(got["w"], want, rtol=1e-9)
