"""Compensation: the residual of a projection as an update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, orthonormal
from _reference import low_rank as ref

import optax_matrix as om
from optax_matrix.linalg.scale import column_norms
from optax_matrix.transforms.low_rank._compensate import residual

M, N, R = 5, 8, 2


def run(tx, grads, u, omega=None):
    """Compensations C_t (without U omega) of gradients in a fixed basis."""
    state = tx.init({"w": grads[0]})
    update = jax.jit(
        lambda g, o, s: tx.update(
            {"w": o}, s, gradient={"w": g}, projected={"w": u.T @ g}, basis={"w": u}
        )
    )
    out = []
    for g in grads:
        o = u.T @ g if omega is None else omega(u.T @ g)
        new, state = update(g, o, state)
        out.append(np.asarray(new["w"] - u @ o))
    return np.stack(out), state


@pytest.fixture(scope="module")
def grads():
    return gaussian(M, N, seed=51) + gaussian(5, M, N, seed=52) / 2


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_optimal_is_algorithm_3(grads):
    u, state = orthonormal(M, R), {}
    tx = om.compensate(scale=0.4, decay=0.8, max_shrink=None, limiter=1.001)
    got, _ = run(tx, grads, u)
    want = [ref.compensation(g, u, state, decay=0.8, growth=1.001) for g in grads]
    np.testing.assert_allclose(got, 0.4 * np.stack(want), atol=1e-12)
    free = [ref.compensation(g, u, {}, decay=0.8) for g in grads]
    assert np.linalg.norm(want[2]) < 0.9 * np.linalg.norm(free[2])  # It was limited.


@pytest.mark.usefixtures("x64")
def test_fira_and_fira_plus_by_hand(grads):
    u = orthonormal(M, R)
    omega = lambda sigma: np.sign(sigma) + sigma / 2
    raw = []
    for g in grads:
        sigma = u.T @ g
        o = np.asarray(omega(sigma))
        ratio = np.linalg.norm(o, axis=0) / np.linalg.norm(sigma, axis=0)
        raw.append((g - u @ sigma) * ratio)
    paper = {"max_shrink": None, "min_share": 0.0}
    got, _ = run(om.compensate("fira", limiter=1.001, **paper), grads, u, omega)
    state = {}
    want = np.stack([ref.limited(c, state, 1.001) for c in raw])
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert np.abs(want - raw).max() > 0.01
    got, state = run(
        om.compensate("fira_plus", scale=0.4, min_share=0.0), grads, u, omega
    )
    sizes = [
        np.linalg.norm(omega(u.T @ g)) / np.linalg.norm(c)
        for g, c in zip(grads, raw, strict=True)
    ]
    want = 0.4 * np.array(sizes)[:, None, None] * np.stack(raw)
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert jax.tree.leaves(state) == []


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["optimal", "fira", "fira_plus"])
@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_no_size_of_gradients_matters(grads, kind, size):
    u = np.float32(orthonormal(M, R))
    tx = om.compensate(kind)
    unit = lambda sigma: jnp.sign(sigma)
    want, _ = run(tx, np.float32(grads), u, unit)
    got, state = run(tx, np.float32(grads) * np.float32(size), u, unit)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.isfinite(x).all()), state))


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["optimal", "fira", "fira_plus"])
def test_nothing_is_left_at_full_rank_or_of_what_the_basis_spans(kind, grads):
    """Exact zeros, and never 0 / 0."""
    tx, unit = om.compensate(kind), lambda sigma: jnp.sign(sigma)
    full, state = run(tx, np.float32(grads[:2]), np.float32(orthonormal(M, M)), unit)
    np.testing.assert_array_equal(full, 0)
    u = np.float32(orthonormal(M, R))
    inside = np.float32(u @ (u.T @ np.float32(grads[:2])))
    got, state = run(tx, inside, u, unit)
    # Rounding noise is not blown up to the size of an update (here sqrt(3 * 8) = 5).
    np.testing.assert_array_equal(got, 0)
    assert jax.tree.all(jax.tree.map(lambda x: bool(jnp.isfinite(x).all()), state))


@pytest.mark.broad
def test_residual_norms_are_never_negative():
    """The difference that the paper prints is, for gradients near the subspace."""
    u = np.float32(orthonormal(M, M - 1))
    g = u @ np.float32(gaussian(M - 1, 400)) + np.float32(1e-4) * gaussian(
        M, 400, seed=3
    )
    g = np.float32(g)
    printed = np.sum(g**2, 0) - np.sum((u.T @ g) ** 2, 0)
    assert printed.min() < 0
    e = residual(jnp.asarray(g), jnp.asarray(u.T @ g), jnp.asarray(u))
    exact = np.float64(g) - np.float64(u) @ (np.float64(u).T @ np.float64(g))
    # Errors of the residual are a few ulp of G, whose columns have norms of up to 4;
    # what lies below 8 sqrt(5) ulp of it is taken for zero.
    np.testing.assert_allclose(
        column_norms(e), np.linalg.norm(exact, axis=0), rtol=2e-2, atol=1e-5
    )


@pytest.mark.usefixtures("x64")
def test_optimal_compensation_minimises_the_loss_of_theorem_5_1():
    """The columns' factors that the block applies, against those 2% beside them."""
    decay, grads = 0.8, gaussian(6, M, N, seed=7) * np.linspace(0.3, 2, N)
    u = np.linalg.svd(np.hstack(grads))[0]
    lead, rest = u[:, :R], u[:, R:]
    weights = (1 - decay) * decay ** np.arange(6)[::-1]
    # F_c: per column U_c diag(E (U_c' g)^2) U_c', E being the block's own average.
    squares = np.einsum("t,tkn->kn", weights, (rest.T @ grads) ** 2)
    blocks = np.einsum("mk,kn,lk->nml", rest, squares, rest)
    projector = rest @ rest.T

    def loss(s):
        return np.sum((s[:, None, None] ** -2.0 * projector - blocks) ** 2)

    got, _ = run(om.compensate(decay=decay, limiter=1e9, max_shrink=None), grads, lead)
    left = projector @ grads[-1]
    best = np.sum(got[-1] * left, 0) / np.sum(left**2, 0)
    np.testing.assert_allclose(got[-1], left * best, atol=1e-12)
    for factor in (0.98, 1.02):
        assert loss(best * factor) > loss(best)
        for i in range(N):
            other = best.copy()
            other[i] *= factor
            assert loss(other) > loss(best)


def test_errors():
    for options, match in (
        ({"kind": "best"}, "`kind` must be one of"),
        ({"scale": -1.0}, "`scale` must not be negative"),
        ({"decay": 1.0}, "`decay` must be in"),
        ({"limiter": 0.0}, "`limiter` must be at least 1"),
        ({"max_shrink": 0.5}, "`max_shrink` must be at least 1"),
    ):
        with pytest.raises(ValueError, match=match):
            om.compensate(**options)
    assert isinstance(om.compensate(), optax.GradientTransformationExtraArgs)
    with pytest.raises(ValueError, match="`combine` of project_low_rank"):
        om.compensate("fira").update({}, om.compensate("fira").init({}))
