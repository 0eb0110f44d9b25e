"""Cautious weight decay: entry by entry, in a chain and in every recipe."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _registry import MATRICES, TABLE, small, tree
from _steps import first_update
from _tiers import QUICK

import optax_matrix as om
from optax_matrix._paths import named_leaves

STEPS = {"poet", "oft", "muonh"}


def test_decay_by_the_definition():
    rng = np.random.default_rng(0)
    w, u = rng.standard_normal((2, 5, 7))
    w[0], u[1] = 0.0, 0.0
    w[2], u[2] = 1e-30, -1e-30  # Their product vanishes, their signs do not.
    expected = u.copy()
    for i, j in np.ndindex(w.shape):
        if np.sign(u[i, j]) * np.sign(w[i, j]) >= 0:
            expected[i, j] += 0.3 * w[i, j]
    tx = om.add_cautious_decay(0.3)
    w, u = np.float32(w), np.float32(u)
    np.testing.assert_allclose(first_update(tx, u, w)[0], expected, rtol=1e-5)
    assert np.sum(np.float32(expected) != u) not in (0, u.size)


def test_schedule_mask_and_absent_leaves():
    tx = om.add_cautious_decay(lambda count: 0.1 * (count + 1), {"a": True, "b": False})
    w = {"a": ones(3), "b": ones(3)}
    update, state = first_update(tx, w, w)
    part = {"a": w["a"], "b": None}
    again, state = jax.device_get(jax.jit(tx.update)(part, state, part))
    assert float(update["a"][0]) == pytest.approx(1.1)
    assert float(update["b"][0]) == 1
    assert float(again["a"][0]) == pytest.approx(1.2)
    assert again["b"] is None


@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TABLE],
)
def test_every_recipe_decays_so(name):
    """Against the same recipe without decay: only the entries of equal sign differ."""
    parameters = inspect.signature(TABLE[name]).parameters
    assert "cautious_decay" in parameters
    assert (
        "cautious_decay"
        not in inspect.signature(
            getattr(om, f"scale_by_{name}", lambda: None)
        ).parameters
    )
    params, grads, rate = tree(0), tree(1), 0.1
    run = lambda **options: jax.jit(
        (tx := small(name)(rate, other_learning_rate=rate, **options)).update
    )(grads, tx.init(params), params)[0]
    plain = named_leaves(run(weight_decay=0.0))
    every = {"cautious_decay": True, "weight_decay_mask": True}
    found = named_leaves(run(weight_decay=0.5, **every))
    for path, w in named_leaves(params).items():
        direction, w = -np.asarray(plain[path]), np.asarray(w)
        agrees = direction * w >= 0
        if name in STEPS and path in MATRICES:
            agrees = False * agrees
        decay = found[path] - plain[path]
        # SPlus divides the decay of a matrix by its sides.
        scale = np.abs(decay).max() / np.abs(rate * 0.5 * w * agrees).max(initial=1e-30)
        if name != "splus" and np.any(agrees):
            assert scale == pytest.approx(1, rel=1e-3)
        expected = -rate * 0.5 * w * agrees * scale
        np.testing.assert_allclose(decay, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.broad
def test_masks_and_refusals():
    params = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
    mask = {"kernel": False, "bias": True}
    tx = om.muon(0.1, weight_decay=0.5, cautious_decay=True, weight_decay_mask=mask)
    update, _ = jax.jit(tx.update)(params, tx.init(params), params)
    alone, _ = (no := om.muon(0.1)).update(params, no.init(params), params)
    np.testing.assert_array_equal(update["kernel"], alone["kernel"])
    assert float(update["bias"][0]) < float(alone["bias"][0])
    with pytest.raises(ValueError, match="`cautious_decay` must be"):
        om.muon(0.1, cautious_decay="yes")
    with pytest.raises(ValueError, match="`weight_decay` must not be negative"):
        om.add_cautious_decay(-0.1)
    tx = optax.chain(om.add_cautious_decay(0.1))
    with pytest.raises(ValueError, match="params"):
        tx.update(params, tx.init(params))
