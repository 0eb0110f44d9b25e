import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, ones, orthonormal, rank_one, strict

from optax_matrix import linalg
from optax_matrix.linalg._inverse_root import LEAST, root_polynomials
from optax_matrix.linalg.spectral_norms import largest_eigenvalue

EPS = float(np.finfo(np.float32).eps)
ROOTS = (1, 2, 4, 8)


@functools.lru_cache(None, typed=True)
def jitted(p, method):
    return jax.jit(functools.partial(linalg.inverse_root, p=p, method=method))


def run(a, p, method, eps=1e-6):
    with strict():
        root = jitted(p, method)(np.float32(a), eps=np.float32(eps))
    return np.asarray(root, np.float64)


def symmetric(w, seed=0):
    q = orthonormal(len(w), len(w), seed)
    a = (q * np.asarray(w)) @ q.T
    return (a + a.T) / 2


def reference(a, p, eps=1e-6):
    # Of what float32 holds, so that the rounding of the input does not count.
    w, q = np.linalg.eigh(np.float64(np.float32(a)))
    w = np.maximum(w, 0)
    return (q * (w + eps * w.max()) ** (-1 / p)) @ q.T


def assert_close(ours, expected, rtol):
    scale = np.linalg.norm(expected)
    np.testing.assert_allclose(np.linalg.norm(ours - expected) / scale, 0, atol=rtol)


@pytest.fixture(params=["eigh", "newton"])
def method(request):
    return request.param


@pytest.mark.quick("4")
@pytest.mark.parametrize("p", ROOTS)
# The least eigenvalue is known to some EPS * cond of itself, and its root to the p-th
# part of that; the constant holds the rounding of eigh and of 25 products.
@pytest.mark.parametrize(("smallest", "rtol"), [(0.1, 1e-5), (1e-3, 2e-4)])
def test_equals_the_float64_root(method, p, smallest, rtol):
    a = symmetric(np.geomspace(1, smallest, 8))
    assert_close(run(a, p, method=method), reference(a, p), rtol)


@pytest.mark.parametrize("p", ROOTS)
def test_its_power_is_the_inverse(method, p):
    a = symmetric(np.linspace(3, 0.5, 8))
    x = run(a, p, method=method, eps=0.0)
    np.testing.assert_allclose(
        np.linalg.matrix_power(x, p) @ a, np.eye(8), atol=p * 50 * EPS
    )
    np.testing.assert_allclose(x, x.T, atol=5 * EPS * np.abs(x).max())


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("kind", ["rank half", "rank one", "ill-conditioned"])
# Rounding of EPS * lambda_max against a damping of eps * lambda_max, for 8 rows.
@pytest.mark.parametrize(("eps", "rtol"), [(1e-4, 8 * EPS / 1e-4), (1e-2, 2e-4)])
def test_damping_takes_over_where_the_matrix_is_singular(method, p, kind, eps, rtol):
    v = rank_one(8, 8)
    a = {
        "rank half": symmetric(np.r_[np.ones(4), np.zeros(4)]),
        "rank one": v @ v.T,
        "ill-conditioned": symmetric(np.geomspace(1, 1e-9, 8)),
    }[kind]
    assert_close(run(a, p, method=method, eps=eps), reference(a, p, eps), rtol)


@pytest.mark.parametrize("p", [1, 4])
@pytest.mark.parametrize("eps", [1e-6, 1e-9, 0.0])
def test_finite_for_singular_matrices_whatever_the_damping(method, p, eps):
    a = np.stack([rank_one(8, 8), np.ones((8, 8)), np.eye(8)])
    a = a @ np.swapaxes(a, -1, -2)
    x = run(a, p, method=method, eps=eps)
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x[2], (1 + eps) ** (-1 / p) * np.eye(8), atol=20 * EPS)


@pytest.mark.parametrize("eps", [1e-7, 1e-8])
def test_newton_goes_on_while_the_error_does_not_show_it(eps):
    # M starts with an entry of eps, which is below the rounding of one.
    a = np.diag([1.0, 0.0])
    x = run(a, 2, "newton", eps=eps)
    np.testing.assert_allclose(np.diagonal(x), [1, eps**-0.5], rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1e20])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_homogeneous(method, p, scale):
    a = symmetric(np.linspace(3, 0.5, 8))
    assert_close(
        run(scale * a, p, method=method), scale ** (-1 / p) * reference(a, p), 1e-5
    )


def test_zero_is_zero_beside_others(method):
    a = np.stack([np.zeros((8, 8)), symmetric(np.linspace(3, 0.5, 8))])
    x = run(a, 4, method=method)
    np.testing.assert_array_equal(x[0], 0)
    assert_close(x[1], reference(a[1], 4), 1e-5)


def test_what_is_not_finite_shows_beside_others(method):
    a = np.stack([np.full((8, 8), np.nan), symmetric(np.linspace(3, 0.5, 8))])
    x = run(a, 4, method=method)
    assert np.isnan(x[0]).any()
    assert_close(x[1], reference(a[1], 4), 1e-5)


def test_negative_rounding_counts_as_zero(method):
    a = symmetric([1.0, 0.5, -1e-7])
    expected = reference(a, 4, 1e-2)
    assert_close(run(a, 4, method=method, eps=1e-2), expected, 1e-4)


def test_eigh_takes_any_negative_eigenvalue_for_zero():
    a = symmetric([1.0, 0.5, -5e-3])
    assert_close(run(a, 4, "eigh", eps=1e-2), reference(a, 4, 1e-2), 1e-5)


def test_both_methods_damp_alike():
    # Eigenvalues so close that 64 powers do not single out the largest.
    a = symmetric(np.r_[np.linspace(1, 0.97, 7), 0])
    x = run(a, 2, method="newton", eps=1e-2)
    assert_close(x, run(a, 2, method="eigh", eps=1e-2), 2e-3)


def test_rotation_equivariance(method):
    a, p = symmetric(np.geomspace(1, 0.1, 8)), orthonormal(8, 8, seed=5)
    x = run(a, 4, method=method)
    np.testing.assert_allclose(run(p @ a @ p.T, 4, method=method), p @ x @ p.T, 0, 1e-5)


def test_diagonal_matrices_have_the_roots_on_the_diagonal(method):
    w = np.array([16.0, 81.0, 1.0])
    x = run(np.diag(w), 4, method=method, eps=0.0)
    np.testing.assert_allclose(x, np.diag(w**-0.25), atol=20 * EPS)


def test_a_gradient_is_whitened(method):
    g = gaussian(8, 40)
    white = run(g @ g.T, 2, method=method, eps=0.0) @ g
    np.testing.assert_allclose(white @ white.T, np.eye(8), atol=100 * EPS)


@pytest.mark.broad
def test_batched_equals_loop_and_vmap(method):
    # They stop after different numbers of steps.
    a = [symmetric(np.geomspace(1, s, 8), seed=i) for i, s in enumerate((0.5, 1e-3, 1))]
    a = np.stack(a).reshape(3, 1, 8, 8)
    batched = run(a, 4, method=method)
    single = np.stack([run(x[0], 4, method=method)[None] for x in a])
    np.testing.assert_allclose(batched, single, atol=20 * EPS)
    mapped = jax.vmap(jitted(4, method=method))(jnp.asarray(a, jnp.float32))
    np.testing.assert_allclose(mapped, batched, atol=20 * EPS)


def test_newton_stops_one_that_diverges_beside_another():
    a = np.stack([np.diag([1.0, -0.5]), np.diag([1.0, 1e-6])])
    x = run(a, 2, "newton", eps=0.0)
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x[1], np.diag([1.0, 1e3]), rtol=1e-5)


def test_float32_for_bfloat16(method):
    a = jnp.asarray(symmetric([4.0, 2.0, 1.0]), jnp.bfloat16)
    x = jitted(2, method=method)(a)
    assert x.dtype == jnp.float32
    assert_close(np.asarray(x), reference(np.asarray(a, np.float64), 2), 1e-5)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_float64_keeps_its_precision(method):
    w = np.geomspace(1, 1e-2, 8)
    x = linalg.inverse_root(jnp.asarray(symmetric(w)), 4, eps=0.0, method=method)
    assert_close(np.asarray(x), symmetric(w**-0.25), 1e-12)


def test_newton_holds_no_decomposition():
    x = jax.ShapeDtypeStruct((2, 8, 8), jnp.float32)
    text = jitted(4, method="newton").lower(x).as_text().lower()
    for name in ("eigh", "syev", "svd", "gesdd", "potrf", "geqrf", "triangular_solve"):
        assert name not in text, name
    assert "syev" in jitted(4, method="eigh").lower(x).as_text().lower()


N = 96
SPECTRA = {
    "random, of low rank": lambda: gaussian(N, N // 4) @ gaussian(N, N // 4).T,
    "random": lambda: gaussian(N, 2 * N) @ gaussian(N, 2 * N).T,
    "graded": lambda: symmetric(np.geomspace(1, 1e-8, N)),
    "power law": lambda: symmetric(np.arange(1.0, N + 1) ** -1.5),
    "rank one": lambda: rank_one(N, N) @ rank_one(N, N).T,
    "clusters": lambda: symmetric(np.r_[np.linspace(1, 0.97, N // 2), [1e-3] * 48]),
    "nearly equal": lambda: symmetric(np.linspace(1, 0.9, N)),
    "one above equal ones": lambda: symmetric(np.r_[1, np.full(N - 1, 0.98)]),
    "diagonal": lambda: np.diag(np.r_[np.full(N - 1, 0.9), 1]),
    "centered": lambda: np.eye(N) - 1 / N,  # A vector of ones would give zero.
    "the longest column misleads": lambda: (
        np.diag(np.r_[1, np.zeros(N - 1)]) + np.pad(np.full((3, 3), 0.5), (1, N - 4))
    ),
}


@pytest.mark.parametrize("kind", SPECTRA)
def test_the_largest_eigenvalue_is_bounded_on_both_sides(kind):
    a = np.float32(SPECTRA[kind]())
    a = a / np.abs(a).max()
    exact = np.linalg.eigvalsh(np.float64(a))[-1]
    top, bound = (x.item() for x in jax.jit(largest_eigenvalue)(jnp.asarray(a)))
    assert 0.98 * exact < top < (1 + 20 * EPS) * exact
    assert 0.98 * exact < bound < 1.02 * exact


@pytest.mark.broad
def test_the_largest_eigenvalue_of_zero_is_zero_beside_others():
    a = jnp.stack([jnp.zeros((3, 3)), jnp.eye(3)])
    top, bound = largest_eigenvalue(a)
    np.testing.assert_allclose(top.ravel(), [0, 1], rtol=4 * EPS)
    np.testing.assert_allclose(bound.ravel(), [0, 1], rtol=4 * EPS)


@pytest.mark.quick("rank one-4")
@pytest.mark.daily("4", "random-2", "random-8")
@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("kind", SPECTRA)
def test_the_polynomials_suffice_for_every_spectrum(kind, p):
    a, eps = SPECTRA[kind](), 1e-5
    x = run(a, p, "newton", eps)
    # The damping comes from an estimate that is up to 2% low; roots are compared where
    # it does not decide, on the range of the matrix, and in full otherwise.
    w, q = np.linalg.eigh(np.float64(np.float32(a)))
    half = (q * np.sqrt(np.maximum(w, 0))) @ q.T
    assert_close(x @ half, reference(a, p, eps) @ half, 1e-3)
    assert_close(x, reference(a, p, eps), 2e-2)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_polynomials_take_all_eigenvalues_to_one(p, dtype):
    """They rise, stay below one and above the least, and end at one."""
    eps = float(np.finfo(dtype).eps)
    x, least = np.geomspace(eps / 16, 1, 20001), LEAST / 1.002**p
    rows = root_polynomials(p, eps)
    for a, b, c in rows[:3]:
        image = x * (a + b * x + c * x * x) ** p
        assert image.max() < 1
        assert (image > np.minimum(1.5 * x, 0.999 * least)).all()
        x = image
    for a, b, c in rows[3:]:
        x = x * (a + b * x + c * x * x) ** p
        assert 0 < x.min() < x.max() < 2
    np.testing.assert_allclose(x, 1, atol=2 * eps)
    assert len(rows) <= (12 if dtype == np.float32 else 23)


@pytest.mark.parametrize("p", [0, -2, True])
def test_roots_that_are_not_positive_are_refused(p):
    with pytest.raises(ValueError, match=r"`p` must be.* positive"):
        linalg.inverse_root(np.eye(2, dtype=np.float32), p)


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="`method` must be one of"):
        linalg.inverse_root(np.eye(2, dtype=np.float32), 2, method="svd")


def test_matrices_that_are_not_square_are_refused():
    with pytest.raises(ValueError, match="square"):
        jax.eval_shape(lambda x: inspect.unwrap(linalg.inverse_root)(x, 2), ones(2, 3))
