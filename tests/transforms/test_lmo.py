"""`lmo`: the authors' formulas, and what an oracle is: the farthest point of a ball."""

import jax
import numpy as np
import pytest

import optax_matrix as om

lmo = om.transforms.lmo
NORMS = ("spectral", "row", "column", "sign")
SHAPES = [(3, 5), (6, 4), (4, 4)]


def direction(norm, m, radius=1.0, **options):
    tx = lmo(norm, radius, polar=om.linalg.polar_svd, **options)
    return np.asarray(jax.jit(tx.update)(m, tx.init(m))[0])


def scion(norm, g, normalized=True):
    """The oracles of LIONS-EPFL/scion, without their epsilons; g is out x in."""
    d_out, d_in = g.shape
    if norm == "spectral":
        u, _, vt = np.linalg.svd(g, full_matrices=False)
        return u @ vt * ((d_out / d_in) ** 0.5 if normalized else d_out**0.5)
    if norm == "sign":
        return np.sign(g) / (d_in if normalized else 1)
    if norm == "row":
        norms = np.sqrt(np.sum(g**2, axis=-1, keepdims=True))
        return g / (norms * (np.sqrt(d_in) if normalized else 1))
    rms = np.sqrt(np.sum(g**2, axis=0, keepdims=True)) / np.sqrt(d_out)
    return g / (rms * (d_in if normalized else 1))


def size(norm, x):
    """The norm whose unit ball the oracle is of: rms of outputs over inputs."""
    m, n = x.shape
    if norm == "spectral":  # Root mean square to root mean square.
        return np.linalg.norm(x, 2) * np.sqrt(n / m)
    if norm == "row":  # Root mean square to the largest output.
        return np.linalg.norm(x, axis=1).max() * np.sqrt(n)
    if norm == "column":  # Inputs of largest entry 1/n to the root mean square.
        return np.linalg.norm(x, axis=0).max() * n / np.sqrt(m)
    return np.abs(x).max() * n


@pytest.mark.quick("sign")
@pytest.mark.daily("shape0", "sign")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("one_hot", [False, True])
def test_by_the_authors_formulas(norm, shape, one_hot):
    g = np.random.default_rng(0).standard_normal(shape)
    got = direction(norm, g, 3.0, one_hot=one_hot)
    want = 3.0 * scion(norm, g, normalized=not one_hot)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.quick("sign", "column-shape2")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", NORMS)
def test_no_point_of_the_ball_is_farther(norm, shape):
    rng = np.random.default_rng(1)
    m = rng.standard_normal(shape)
    best = direction(norm, m, 2.0)
    assert size(norm, best) == pytest.approx(2.0)
    for _ in range(200):
        x = rng.standard_normal(shape) + rng.choice([0, 3]) * best
        x *= 2.0 / size(norm, x)
        assert np.sum(m * x) < np.sum(m * best)


@pytest.mark.quick("sign")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", NORMS)
def test_zero_rank_one_and_small_matrices(norm, dtype):
    rng = np.random.default_rng(2)
    one = np.outer(rng.standard_normal(4), rng.standard_normal(6))
    zero_row = rng.standard_normal((4, 6))
    zero_row[1], zero_row[:, 2] = 0, 0
    stack = np.asarray(np.stack([0 * one, one, zero_row, 1e-20 * zero_row]), dtype)
    got = direction(norm, stack)
    assert got.dtype == stack.dtype
    got = np.float32(got)
    assert np.isfinite(got).all()
    assert not got[0].any()
    assert not got[2, 1].any() or norm == "spectral"
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(got[2], got[3], rtol=tolerance, atol=tolerance)
    for i in (0, 1, 2, 3):
        np.testing.assert_allclose(got[i], direction(norm, stack[i]), atol=tolerance)


def test_mistakes():
    with pytest.raises(ValueError, match="`norm` must be one of 'spectral', 'row', 'c"):
        lmo("nuclear")
    with pytest.raises(ValueError, match="`radius` must be positive"):
        lmo("sign", 0.0)
