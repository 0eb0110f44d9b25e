import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, ones, orthonormal, rank_one, strict
from _reference.rotations import eigenvectors

from optax_matrix import linalg

EPS = float(np.finfo(np.float32).eps)


@functools.lru_cache(None, typed=True)
def jitted():
    return jax.jit(linalg.eigenbasis)


def run(a):
    with strict():
        w, q = jitted()(np.float32(a))
    return np.asarray(w, np.float64), np.asarray(q, np.float64)


def symmetric(w, seed=0):
    q = orthonormal(len(w), len(w), seed)
    return (q * w) @ q.T


# Gaps of at least one, relative to a largest eigenvalue of eight.
DISTINCT = np.array([8.0, 6.0, 5.0, 3.0, 1.0, 0.0, -2.0])


def test_equals_the_float64_vectors():
    a = symmetric(DISTINCT)
    w, q = run(a)
    np.testing.assert_allclose(w, DISTINCT, atol=8 * 10 * EPS)
    np.testing.assert_allclose(q, eigenvectors(a), atol=8 * 10 * EPS)


@pytest.mark.quick("shape0", "shape1")
@pytest.mark.parametrize("shape", [(5, 5), (1, 1), (2, 3, 6, 6)])
def test_defining_equations(shape):
    g = gaussian(*shape)
    a = g + np.swapaxes(g, -1, -2)
    w, q = run(a)
    n = shape[-1]
    eye = np.broadcast_to(np.eye(n), a.shape)
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, eye, atol=20 * EPS)
    rebuilt = (q * w[..., None, :]) @ np.swapaxes(q, -1, -2)
    np.testing.assert_allclose(rebuilt, a, atol=50 * EPS * np.abs(a).max())
    assert (np.diff(w, axis=-1) <= 0).all()
    largest = np.take_along_axis(q, np.abs(q).argmax(-2)[..., None, :], -2)
    assert (largest > 0).all()


def test_only_the_symmetric_part_counts():
    a, b = symmetric(DISTINCT), gaussian(7, 7)
    np.testing.assert_allclose(run(a + b - b.T)[1], run(a)[1], atol=8 * 10 * EPS)


def test_zero_gives_the_identity_beside_others():
    a = np.stack([np.zeros((7, 7)), symmetric(DISTINCT)])
    w, q = run(a)
    np.testing.assert_array_equal(w[0], 0)
    np.testing.assert_array_equal(q[0], np.eye(7))
    np.testing.assert_allclose(q[1], eigenvectors(a[1]), atol=8 * 10 * EPS)


@pytest.mark.parametrize("name", ["rank one", "identity", "ill-conditioned"])
def test_finite_and_orthonormal_where_eigenvalues_coincide(name):
    v = rank_one(8, 8)
    a = {
        "rank one": v @ v.T,
        "identity": np.eye(8),
        "ill-conditioned": symmetric(np.geomspace(1, 1e-12, 8)),
    }[name]
    w, q = run(a)
    np.testing.assert_allclose(q.T @ q, np.eye(8), atol=20 * EPS)
    expected = np.linalg.eigvalsh(a)[::-1]
    np.testing.assert_allclose(w, expected, atol=10 * EPS * expected[0])


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_scale(scale):
    a = symmetric(DISTINCT)
    w, q = run(scale * a)
    np.testing.assert_allclose(w / scale, DISTINCT, atol=8 * 10 * EPS)
    np.testing.assert_allclose(q, eigenvectors(a), atol=8 * 10 * EPS)


def test_what_is_not_finite_shows_beside_others():
    a = np.stack([np.full((7, 7), np.nan), symmetric(DISTINCT)])
    w, q = run(a)
    assert np.isnan(w[0]).all()
    assert np.isnan(q[0]).any()
    np.testing.assert_allclose(q[1], eigenvectors(a[1]), atol=8 * 10 * EPS)


@pytest.mark.broad
def test_float32_for_bfloat16():
    w, q = linalg.eigenbasis(jnp.eye(3, dtype=jnp.bfloat16))
    assert (w.dtype, q.dtype) == (jnp.float32, jnp.float32)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_float64_keeps_its_precision():
    a = symmetric(DISTINCT)
    w, q = linalg.eigenbasis(jnp.asarray(a))
    np.testing.assert_allclose(w, DISTINCT, atol=1e-13)
    np.testing.assert_allclose(q, eigenvectors(a), atol=1e-13)


def test_matrices_that_are_not_square_are_refused():
    with pytest.raises(ValueError, match="square"):
        jax.eval_shape(inspect.unwrap(linalg.eigenbasis), ones(2, 3))
