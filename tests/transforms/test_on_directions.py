"""`on_directions`: Muown's rule in NumPy float64, and what it does to rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _steps import first_update

import optax_matrix as om

on_directions = om.transforms.on_directions
RATE = 0.05


def muown(rate=RATE, decay=0.0):
    polar = om.orthogonalize(om.linalg.polar_svd)
    direction = optax.chain(om.momentum(0.95), polar, om.scale_by_shape("max"))
    adam = optax.scale_by_adam(0.9, 0.95)
    gain = optax.chain(adam, optax.add_decayed_weights(decay)) if decay else None
    return on_directions(direction, gain, rate)


def numpy_muown(w, gradients, rate, decay):
    """The steps of ``muown.py`` of Emerging-Optimizers, one matrix."""
    rows = lambda x: np.linalg.norm(x, axis=1, keepdims=True)
    gain, length = rows(w), rows(w)
    momentum, mean, square = 0.0, 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        unit = w / gain
        v = unit * length
        of_gain = (g * unit).sum(1, keepdims=True)
        of_v = gain / length * (g - unit * of_gain)
        momentum = 0.95 * momentum + 0.05 * of_v
        left, _, right = np.linalg.svd(momentum, full_matrices=False)
        v = v - rate(t - 1) * 0.2 * np.sqrt(max(w.shape)) * left @ right
        mean = 0.9 * mean + 0.1 * of_gain
        square = 0.95 * square + 0.05 * of_gain**2
        adam = mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
        gain = gain - rate(t - 1) * (adam + decay * gain)
        length = rows(v)
        w = gain * v / length
        yield w, gain


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("scheduled", "decay"),
    [(False, 0.0), pytest.param(True, 0.5, marks=pytest.mark.broad)],
)
def test_steps_are_those_of_muown(scheduled, decay):
    """A gain passes zero on the way, so that its sign counts."""
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((2, 3, 5))
    gradients = [stack + rng.standard_normal(stack.shape) for _ in range(8)]
    stack[0, 1] *= 0.01
    rate = (lambda t: RATE / (1 + t)) if scheduled else (lambda _: RATE)
    tx = muown(rate if scheduled else RATE, decay)
    state, update, w = jax.jit(tx.init)(stack), jax.jit(tx.update), stack
    paths = zip(
        *(
            numpy_muown(x, [g[i] for g in gradients], rate, decay)
            for i, x in enumerate(stack)
        ),
        strict=True,
    )
    signs = set()
    for g, want in zip(gradients, paths, strict=True):
        steps, state = update(g, state, w)
        w = w + jax.device_get(steps)
        for got, gains, (x, gain) in zip(w, state.gains, want, strict=True):
            np.testing.assert_allclose(got, x, rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(gains, gain, rtol=1e-8, atol=1e-9)
            signs |= set(np.sign(gain).ravel())
    assert scheduled or signs == {1.0, -1.0}


@pytest.mark.broad
def test_lengths_of_rows_are_the_gains_wherever_weights_came_from():
    w = np.random.default_rng(0).standard_normal((4, 6), np.float32)
    tx = on_directions(optax.identity(), optax.set_to_zero(), 0.1)
    state = tx.init(w)
    steps, state = tx.update(jnp.ones((4, 6)), state, 3 * w)
    got = np.linalg.norm(3 * w + steps, axis=1)
    np.testing.assert_allclose(got, np.linalg.norm(w, axis=1), rtol=1e-5)
    np.testing.assert_allclose(state.gains[:, 0], np.linalg.norm(w, axis=1), rtol=1e-6)
    assert (state.lengths >= state.gains).all()


def test_rows_of_zeros_stay():
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((2, 4, 6), np.float32)
    w[1] = 0
    steps, state = first_update(muown(), g, w)
    assert np.isfinite(steps).all()
    assert not steps[1].any()
    assert steps[0].any()
    assert np.isfinite(state.lengths).all()


def test_it_must_get_parameters():
    tx, w = muown(), np.ones((3, 4))
    state = jax.eval_shape(tx.init, w)
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        tx.update(w, state)
    with pytest.raises(ValueError, match="`direction` must be a gradient transform"):
        on_directions(0.1)
    with pytest.raises(ValueError, match="`learning_rate` must not be neg"):
        on_directions(optax.identity(), learning_rate=-1.0)
