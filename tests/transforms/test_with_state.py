"""`with_state`: what a function of one matrix gets, keeps, and may not do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om

with_state = om.transforms.with_state
W = {"a": np.float32(gaussian(2, 3, 4)), "b": np.float32(gaussian(1, 2, 2, seed=1))}


def steps(tx, stream, params=None, **extra):
    @jax.jit
    def run(stream, params, extra):
        state, found = tx.init(stream[0]), []
        for x in stream:
            new, state = tx.update(x, state, params, **extra)
            found.append(new)
        return found, state

    return jax.device_get(run(stream, params, extra))


def test_numbers_arrays_and_ints_are_kept_for_each_matrix():
    def step(x, state, *_):
        size, turn, last = state["size"], state["turn"], state["last"]
        new = jnp.where(turn % 2 == 0, x - last, size * x)
        size = size + jnp.max(jnp.abs(x), (-2, -1), keepdims=True)
        return new, {"size": size, "turn": turn + 1, "last": x}

    zero = lambda x, dtype: jnp.zeros((*x.shape[:-2], 1, 1), dtype)
    start = lambda x: {
        "size": zero(x, x.dtype) + 0.5,
        "turn": zero(x, jnp.int32),
        "last": 0 * x,
    }
    stream = [W, optax.tree.scale(2.0, W), optax.tree.scale(-1.0, W)]
    got, state = steps(with_state(step, start), stream)
    for name, w in W.items():
        size = 0.5 + np.abs(w).max((-2, -1), keepdims=True)
        for new, want in zip(got, (w, size * 2 * w, -3 * w), strict=True):
            np.testing.assert_allclose(new[name], want, rtol=1e-6)
        assert state.held[name]["turn"].dtype == np.int32
        np.testing.assert_array_equal(state.held[name]["turn"], 3)


def test_a_tuple_of_numbers_starts_as_given():
    tx = with_state(lambda x, s, *_: (s[0] * x, (s[0] + 1, s[1] + 1)), (2.0, 3))
    got, state = steps(tx, [W, W])
    np.testing.assert_allclose(got[1]["a"], 3 * W["a"], rtol=1e-6)
    assert [x.dtype for x in state.held["a"]] == [np.float32, np.int32]
    assert [x.shape for x in state.held["a"]] == [(2, 1, 1)] * 2


def test_gradient_and_parameters_are_widened_and_the_update_keeps_its_dtype():
    seen = []

    def step(x, s, gradient, params):
        seen.append((x.dtype, gradient.dtype, None if params is None else params.dtype))
        return gradient if params is None else gradient + params, s

    half = {"a": np.asarray(W["a"], jnp.bfloat16)}
    twice = {"a": 2 * half["a"]}
    (own,), state = steps(with_state(step), [half])
    np.testing.assert_array_equal(own["a"], half["a"])
    assert own["a"].dtype == half["a"].dtype
    assert state.held["a"].dtype == np.float32
    tx = with_state(lambda _, s, g, w: (g + w, s))
    (both,), _ = steps(tx, [half], half, gradient=twice)
    want = (3 * np.float32(half["a"])).astype(jnp.bfloat16)
    np.testing.assert_array_equal(both["a"], want)
    assert seen == [(np.float32, np.float32, None)]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x, s, *_: (x[..., :1, :], s), "the update in the form that it had"),
        (lambda x, s, *_: (x, s + x), "the state in the form that it had"),
        (lambda x, s, *_: (x, (s,)), "the state in the form that it had"),
    ],
)
def test_another_form_is_refused(step, message):
    tx = with_state(step)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(tx.update, W, jax.eval_shape(tx.init, W))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`step` must be a function of"):
        with_state(2.0)
    with pytest.raises(ValueError, match="`start` must be a number, a tuple"):
        with_state(lambda x, s, *_: (x, s), start="zero")
    with pytest.raises(ValueError, match="`x` must be matrices"):
        with_state(lambda x, s, *_: (x, s)).init({"b": np.ones(3)})


@pytest.mark.broad
def test_a_function_that_couples_matrices_is_refused():
    tx = om.on_matrices(with_state(lambda x, s, *_: (x / jnp.linalg.norm(x), s)))
    with pytest.raises(ValueError, match="treat each matrix of a stack by itself"):
        tx.init({"layers": {"kernel": W["a"]}})
