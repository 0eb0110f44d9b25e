"""`muonh`: `hyperball` around `muon`, Levanter's AdamH for the head, else Adam."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _raised import raise_warnings

import optax_matrix as om

D, VOCAB, LR = 6, 10, 0.02
SHAPES = {
    "embed/embedding": (VOCAB, D),
    "layers/up/kernel": (3, D, 8),
    "mlp/down/kernel": (8, D),
    "mlp/down/bias": (D,),
    "router/kernel": (D, 4),
    "lm_head/kernel": (D, VOCAB),
}


def arrays(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {n: np.asarray(rng.standard_normal(s), dtype) for n, s in SHAPES.items()}


def run(tx, steps=4, dtype=np.float64):
    params, update = jax.tree.map(jnp.asarray, arrays(0, dtype)), jax.jit(tx.update)
    state = tx.init(params)
    for t in range(steps):
        updates, state = update(arrays(t + 1, dtype), state, params)
        params = optax.apply_updates(params, updates)
    return params


def adam(g, s, b1=0.9, b2=0.95, eps=1e-8):
    t = s["t"] = s.get("t", 0) + 1
    m = s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    v = s["v"] = b2 * s.get("v", 0) + (1 - b2) * g**2
    return (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)


@pytest.mark.daily("True")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scheduled", [False, True])
def test_head_and_other_leaves_by_levanters_formulas(scheduled):
    at = (lambda t: LR / (1 + t)) if scheduled else (lambda _: LR)
    got = run(om.muonh(at if scheduled else LR))
    for name in ("embed/embedding", "mlp/down/bias", "router/kernel", "lm_head/kernel"):
        w, state = arrays(0)[name], {}
        for t in range(4):
            u = adam(arrays(t + 1)[name], state)
            if name == "lm_head/kernel":
                norm = np.linalg.norm(w)
                new = w - at(t) * u * norm / np.linalg.norm(u)
                w = new / np.linalg.norm(new) * norm
            else:
                w = w - 3 / 13 * at(t) * u
        np.testing.assert_allclose(got[name], w, rtol=1e-9, err_msg=name)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_it_is_hyperball_around_muon():
    quintic = partial(om.linalg.newton_schulz, coefficients=om.linalg.YOU)
    muon = om.muon(1.0, polar=quintic, other=optax.adam(3 / 13 * LR, b2=0.95))
    rule = om.matrices.by_path(include="lm_head")
    wrapped = run(om.weights.hyperball(muon, LR, dimension_numbers=rule))
    # Alone, the head keeps the current norm, there the first: the same to rounding.
    for name, x in run(om.muonh(LR)).items():
        np.testing.assert_allclose(x, wrapped[name], rtol=1e-9, err_msg=name)


@pytest.mark.broad
def test_keywords_of_the_other_leaves():
    start = arrays(0, np.float32)
    one = partial(run, steps=1, dtype=np.float32)
    frozen = one(om.muonh(LR, other_learning_rate=0.0))
    for name in ("embed/embedding", "mlp/down/bias", "router/kernel"):
        np.testing.assert_array_equal(frozen[name], start[name])
    assert (frozen["lm_head/kernel"] != start["lm_head/kernel"]).all()
    plain, decayed = one(om.muonh(LR)), one(om.muonh(LR, weight_decay=0.5))
    changed = {n for n, x in plain.items() if not np.allclose(x, decayed[n], 1e-6)}
    assert changed == {"embed/embedding", "router/kernel"}
    for name, x in one(om.muonh(LR, other=optax.sgd(0.0))).items():
        same = name.endswith(("up/kernel", "down/kernel"))
        assert same == bool((np.asarray(x) != start[name]).any()), name


@pytest.mark.slow
def test_norms_stay_in_bfloat16():
    end = run(om.muonh(0.05), steps=50, dtype=jnp.bfloat16)
    norm = lambda x: np.linalg.norm(np.asarray(x, np.float64), axis=(-2, -1))
    start = arrays(0, jnp.bfloat16)
    for name in ("layers/up/kernel", "mlp/down/kernel", "lm_head/kernel"):
        np.testing.assert_allclose(norm(end[name]), norm(start[name]), rtol=0.02)


@pytest.mark.broad
def test_a_head_of_zeros_is_a_warning():
    params = arrays(0, np.float32)
    params["lm_head/kernel"] = 0 * params["lm_head/kernel"]
    tx = om.muonh(LR)
    with pytest.warns(UserWarning, match="never moved by steps.*: lm_head/kernel"):
        state = tx.init(params)
    updates, _ = jax.jit(tx.update)(arrays(1, np.float32), state, params)
    assert not updates["lm_head/kernel"].any()
    with warnings.catch_warnings():
        raise_warnings()
        jax.eval_shape(tx.init, params)
        om.muonh(LR, other=optax.adam(1e-3)).init(params)


@pytest.mark.broad
def test_a_step_without_gradient_fades():
    """Where the momentum alone is left, on the chord to the sphere."""
    params = {"kernel": jnp.asarray(np.random.default_rng(0).standard_normal((4, 6)))}
    tx = om.muonh(0.1, b1=0.5)
    grads, zero = params, jax.tree.map(jnp.zeros_like, params)
    state, update, sizes = tx.init(params), jax.jit(tx.update), []
    for g in (grads, zero, zero, zero):
        updates, state = update(g, state, params)
        sizes.append(float(jnp.linalg.norm(updates["kernel"])))
    ratios = np.array(sizes[1:]) / sizes[0]
    np.testing.assert_allclose(ratios, [0.5, 0.25, 0.125], rtol=0.05)


def test_marins_law_gives_the_numbers_of_its_runs():
    """As in the docstring, for the run of issue 6044: batches of 8192 sequences."""
    rate = 18.31 * 1.007e13**-0.395 * 2560**-0.15 * 8192**0.5
    assert rate == pytest.approx(0.003733, rel=2e-3)
    assert 3 / 13 * rate == pytest.approx(0.000861, rel=2e-3)
