"""The worked examples are their methods' formulas, restated in NumPy and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, orthonormal

from examples import build_your_own

STEPS, SHAPE, RATE = 4, (5, 3), 0.1  # A kernel of five inputs and three outputs.
GRADS = [gaussian(*SHAPE, seed=k) for k in range(STEPS)]


def polar(x):
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return u * (s > 1e-9 * s[0]) @ vt  # The first matrix of PRISM has rank three.


def averages(b1=0.95, nesterov=False):
    """The momentum of each step, as a matrix of outputs by inputs."""
    m, found = np.zeros(SHAPE[::-1]), []
    for g in GRADS:
        m = b1 * m + (1 - b1) * g.T
        found.append(b1 * m + (1 - b1) * g.T if nesterov else m)
    return found


def rmnp():
    return [m / np.linalg.norm(m, axis=1, keepdims=True) for m in averages()]


def polar_grad():
    return [polar(m) * np.sum(np.linalg.svd(m)[1]) for m in averages()]


def contra_muon():
    found = []
    for m in averages(nesterov=True):
        less = polar(m) - 0.1 * m / np.linalg.norm(m, 2)
        found.append(less * np.linalg.norm(polar(m)) / np.linalg.norm(less))
    return found


def prism():
    pairs = zip(averages(), GRADS, strict=True)
    return [polar(np.concatenate([m, g.T - m]))[: SHAPE[1]] for m, g in pairs]


CHAINS = {f.__name__: f for f in (rmnp, polar_grad, contra_muon, prism)}


def updates_of(tx, start=None, **others):
    kernel = np.zeros(SHAPE) if start is None else start
    params = jax.tree.map(jnp.asarray, {"kernel": kernel, **others})
    state, found, step = tx.init(params), [], jax.jit(tx.update)
    for g in GRADS:
        grads = {name: np.ones_like(x) for name, x in params.items()}
        grads["kernel"] = np.asarray(g, params["kernel"].dtype)
        updates, state = step(grads, state, params)
        found.append(np.asarray(updates["kernel"]).T)
        params = optax.apply_updates(params, updates)
    return found, params


@pytest.mark.broad
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_its_formula(name):
    tx = build_your_own.optimizer(getattr(build_your_own, name)(), RATE)
    with jax.enable_x64(True):
        found, params = updates_of(tx, bias=np.zeros(3))
    assert np.abs(params["bias"]).min() > 0
    np.testing.assert_allclose(found, -RATE * np.array(CHAINS[name]()), rtol=1e-7)


@pytest.mark.broad
def test_moso_is_soap_of_the_momentum_on_the_short_side():
    b2 = b3 = 0.95
    c, r, v, expected = np.zeros((3, 3)), np.eye(3), np.zeros(SHAPE[::-1]), []
    for m in averages():
        c = b3 * c + (1 - b3) * m @ m.T
        q, upper = np.linalg.qr(c @ r)
        r = q * np.sign(np.diag(upper))
        v = b2 * v + (1 - b2) * (r.T @ m) ** 2
        expected.append(r @ ((r.T @ m) / np.sqrt(v)))
    with jax.enable_x64(True):
        found, _ = updates_of(build_your_own.optimizer(build_your_own.moso(), RATE))
    np.testing.assert_allclose(found, -RATE * np.array(expected), rtol=1e-6)


@pytest.mark.broad
def test_spel_keeps_kernels_orthonormal():
    start = orthonormal(*SHAPE)
    w = start.T
    for m in averages():
        w = polar(w - RATE * polar(m))
    with jax.enable_x64(True):
        _, params = updates_of(build_your_own.spel(RATE), start)
    np.testing.assert_allclose(params["kernel"].T, w, atol=1e-12)


def test_soda_pulls_to_the_initial_weights():
    start = gaussian(*SHAPE, seed=9)
    w = start
    for k, g in enumerate(GRADS):
        w = w - RATE * g + (start - w) / (k + 2)
    with jax.enable_x64(True):
        _, params = updates_of(build_your_own.soda(optax.sgd(RATE)), start)
    np.testing.assert_allclose(params["kernel"], w, rtol=1e-12)


def test_soda_needs_the_weights():
    tx = build_your_own.soda(optax.sgd(RATE))
    state = tx.init({"kernel": jnp.ones(SHAPE)})
    with pytest.raises(ValueError, match="`params` must be passed to `update`"):
        tx.update({"kernel": jnp.ones(SHAPE)}, state)


@pytest.mark.parametrize("name", ["rmnp", "contra_muon", "prism", "soda"])
def test_equals_rollfast(name):
    pytest.importorskip("rollfast")
    from rollfast.optim import dimension_numbers, normuon, prism, rmnp, soda

    exact = {"ns_coeffs": ((15 / 8, -10 / 8, 3 / 8),) * 30, "ns_iters": 30}
    rows = {"kernel": dimension_numbers.MatrixDimensionNumbers(1, 0)}
    dims = {"weight_dimension_numbers": rows}
    theirs = {
        "rmnp": lambda: rmnp.scale_by_rmnp(0.95, nesterov=False, **dims),
        "contra_muon": lambda: normuon.scale_by_normuon(
            0.95, None, contra_coeff=0.2, contra_power_iters=50, **exact, **dims
        ),
        "prism": lambda: prism.scale_by_prism(
            0.95, nesterov=False, bias_correction=False, **exact, **dims
        ),
        "soda": lambda: soda.soda(optax.sgd(RATE)),
    }
    chain = getattr(build_your_own, name)
    is_chain = name != "soda"
    tx = build_your_own.optimizer(chain(), RATE) if is_chain else chain(optax.sgd(RATE))
    start = gaussian(*SHAPE, seed=9)
    found, _ = updates_of(tx, start)
    expected, _ = updates_of(theirs[name](), start)
    found = np.array(found) / (-RATE if is_chain else 1)
    # PRISM's first matrix has rank three, and what their steps add to it is rounding.
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-4, atol=1e-5)
