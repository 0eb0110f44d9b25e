"""KL-Shampoo where the size of gradients changes: its eigenvalues follow at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian
from _reference import rotations as ref

import optax_matrix as om

SHAPE, STEPS, AT = (6, 6), 160, 60
STREAM = np.float32(gaussian(STEPS, *SHAPE, seed=1))


def ours(scales):
    tx = om.scale_by_kl_shampoo()

    def body(state, g):
        updates, state = tx.update({"kernel": g}, state)
        return state, jnp.linalg.norm(updates["kernel"])

    grads = jnp.asarray(STREAM.mT * np.float32(scales)[:, None, None])
    start = tx.init({"kernel": grads[0]})
    return np.asarray(jax.jit(lambda g: jax.lax.scan(body, start, g))(grads)[1])


def letter(scales):
    step = functools.partial(ref.kl_shampoo, interval=10)
    state, grads = {}, STREAM.astype(np.float64) * np.array(scales)[:, None, None]
    return np.array([np.linalg.norm(step(g, state)) for g in grads])


ONES = np.ones(STEPS)
STREAMS = {
    "a small first gradient": np.where(np.arange(STEPS) == 0, 1e-4, ONES),
    "larger from a step on": np.where(np.arange(STEPS) < AT, ONES, 1e4),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", STREAMS)
def test_updates_keep_their_size_when_gradients_change_theirs(name):
    """By the letter of the paper, both sides average the size, and updates vanish."""
    scales = STREAMS[name]
    after = slice(1, 60) if scales[0] < 1 else slice(AT, AT + 60)
    found = (ours(scales) / ours(ONES))[after]
    assert found.min() > 0.5
    assert found.max() < 10
    assert np.median((letter(scales) / letter(ONES))[after]) < 0.1


@pytest.mark.broad
def test_a_matrix_that_was_idle_comes_back():
    idle = np.where((np.arange(STEPS) > 20) & (np.arange(STEPS) < AT + 60), 0, ONES)
    found = (ours(idle) / ours(ONES))[AT + 60 :]
    assert found.min() > 0.5
    assert found.max() < 10


@pytest.mark.broad
def test_ordinary_steps_are_those_of_the_paper():
    np.testing.assert_allclose(ours(ONES), letter(ONES), rtol=2e-3)
