"""`precondition` with any exponent, against eigendecompositions in float64."""

import jax
import numpy as np
import optax
import pytest
from _matrices import gaussian, polar, rank_one

import optax_matrix as om
from optax_matrix.linalg import as_root, inverse_root


def power(a, p):
    """A symmetric matrix to a power, on its range."""
    w, q = np.linalg.eigh(a)
    kept = w > 1e-9 * w.max(initial=0)
    return (q * np.where(kept, np.where(kept, w, 1) ** p, 0)) @ q.T


def last(tx, stream):
    @jax.jit
    def run(stream):
        state = tx.init({"w": stream[0]})
        for g in stream:
            new, state = tx.update({"w": g}, state)
        return new["w"]

    return jax.device_get(run(stream))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("p", "side"), [(0.3, "both"), (1.0, "in"), (0.45, "out")])
def test_sums_to_any_power(p, side):
    stream = [gaussian(3, 4, seed=k) for k in range(3)]
    tx = om.precondition(power=p, side=side, eps=0.0, method="eigh")
    left = power(sum(g @ g.T for g in stream), -p) if side != "in" else np.eye(3)
    right = power(sum(g.T @ g for g in stream), -p) if side != "out" else np.eye(4)
    want = left @ stream[-1] @ right
    np.testing.assert_allclose(last(tx, stream), want, rtol=1e-9)


@pytest.mark.broad
def test_pmuon_is_a_chain():
    """Record 18 of modded-nanogpt's track 3, with its exponent of 0.3."""
    stream, m, l, r = [gaussian(4, 6, seed=k) for k in range(3)], 0, 0, 0
    for g in stream:
        m, l, r = (
            0.95 * m + 0.05 * g,
            0.95 * l + 0.05 * g @ g.T,
            0.95 * r + 0.05 * g.T @ g,
        )
    options = {"decay": 0.95, "method": "eigh", "momentum": om.momentum(0.95)}
    whitened = om.precondition(power=0.3, **options)
    tx = optax.chain(whitened, om.orthogonalize(om.linalg.polar_svd))
    got = last(tx, np.float32(stream))
    np.testing.assert_allclose(
        got, polar(power(l, -0.3) @ m @ power(r, -0.3)), atol=2e-3
    )


@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_zero_and_rank_deficient_matrices(eps):
    tx = om.precondition(power=0.3, eps=eps, method="eigh")
    x = np.float32([np.zeros((3, 4)), rank_one(3, 4), 1e20 * rank_one(3, 4)])
    got = last(tx, [x])
    np.testing.assert_array_equal(got[0], 0)
    g = rank_one(3, 4)
    size = np.linalg.norm(g)
    for factor, new in zip((1.0, 1e20), got[1:], strict=True):
        want = g * factor * (factor * size) ** -1.2
        np.testing.assert_allclose(new, want, atol=1e-3 * np.abs(want).max())


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("p", [10 / 3, 1.5])
def test_the_derivative_of_a_root_that_is_no_int(p):
    g, d = gaussian(4, 6), gaussian(4, 4, seed=1)
    a, d, h = g @ g.T + np.eye(4), d + d.T, 1e-5
    root = lambda a: inverse_root(a, p, eps=1e-3)
    _, got = jax.jit(lambda a, d: jax.jvp(root, (a,), (d,)))(a, d)
    ahead, behind = jax.jit(jax.vmap(root))(np.stack([a + h * d, a - h * d]))
    np.testing.assert_allclose(got, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)
    # Equal eigenvalues: of the identity it is a multiple of the direction.
    root = lambda a: inverse_root(a, p, eps=0.0)
    _, got = jax.jit(lambda a, d: jax.jvp(root, (a,), (d,)))(np.eye(4), d)
    np.testing.assert_allclose(got, -d / p, atol=1e-12)


def test_exponents_that_are_those_of_roots_and_others():
    for p in range(1, 200):
        assert as_root(1 / p) == p
        assert isinstance(as_root(1 / p), int)
    assert isinstance(as_root(0.3), float)
    with pytest.raises(ValueError, match=r"the root 3\.33333; pass method='eigh'"):
        om.precondition(power=0.3)
    with pytest.raises(ValueError, match="`power` must be positive, got 0"):
        om.precondition(power=0.0)
    with pytest.raises(ValueError, match="`p` must be that of a root by an int"):
        inverse_root(jax.device_put(np.eye(2)), 1.5, method="newton")
