"""Measures of rows, columns and rotations against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, orthonormal, shapes, strict

from optax_matrix import diagnostics as d

energy = jax.jit(d.hyperspherical_energy)


def rotations(count, m):
    return jnp.float32(np.stack([orthonormal(m, m, seed=i) for i in range(count)]))


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_orthogonality_error_is_that_of_the_shorter_side(x):
    y = x if x.shape[-2] <= x.shape[-1] else x.swapaxes(-1, -2)
    eye = np.eye(y.shape[-2])
    norm = np.linalg.norm(y @ y.swapaxes(-1, -2) - eye, axis=(-2, -1))
    with strict():
        got = d.orthogonality_error(jnp.float32(x))
    np.testing.assert_allclose(got, norm / np.linalg.norm(eye), rtol=1e-5)


@pytest.mark.broad
def test_orthogonality_error_of_semi_orthogonal_and_of_zero_matrices():
    tall = jnp.float32(orthonormal(9, 4))
    assert d.orthogonality_error(tall) < 1e-6
    assert d.orthogonality_error(tall.T) < 1e-6
    assert d.orthogonality_error(jnp.zeros((4, 2))) == 1
    half = d.orthogonality_error(tall.astype(jnp.bfloat16))
    assert half.dtype == jnp.float32
    assert 1e-6 < half < 1e-2


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
@pytest.mark.parametrize(("side", "axis"), [("out", -1), ("in", -2)])
def test_norm_spread(x, side, axis):
    norms = np.linalg.norm(x, axis=axis)
    got = d.norm_spread(jnp.float32(x), side=side)
    np.testing.assert_allclose(got, norms.max(-1) / norms.min(-1), rtol=1e-5)


@pytest.mark.broad
def test_norm_spread_of_zero_rows_and_extreme_scales():
    x = jnp.float32(gaussian(3, 4))
    assert d.norm_spread(x.at[1].set(0.0)) == np.inf
    assert np.isfinite(d.norm_spread(x.at[1].set(0.0), side="in"))
    assert d.norm_spread(jnp.zeros((2, 2))) == np.inf
    np.testing.assert_allclose(d.norm_spread(1e30 * x), d.norm_spread(x), rtol=1e-5)


@pytest.mark.parametrize("x", shapes().values(), ids=shapes())
def test_hyperspherical_energy_is_equation_1(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    distance = np.linalg.norm(unit[..., :, None, :] - unit[..., None, :, :], axis=-1)
    off = ~np.eye(x.shape[-2], dtype=bool)
    with np.errstate(divide="ignore"):
        each = np.where(off, 1 / distance, 0)
    if x.shape[-1] == 1:  # Neurons of one input coincide; a distance has a floor.
        each = np.minimum(each, 1 / (2 * np.finfo(np.float32).eps ** 0.5))
    with strict():
        got = energy(jnp.float32(x))
    np.testing.assert_allclose(got, each.sum((-2, -1)), rtol=1e-4)


def test_hyperspherical_energy_has_poets_invariances():
    """It depends on angles alone; rotations of the inputs keep it (POET, Eq. 1)."""
    w = jnp.float32(gaussian(7, 5))
    want = energy(w)
    np.testing.assert_allclose(energy(w @ rotations(1, 5)[0]), want, 1e-4)
    scales = jnp.arange(1.0, 8.0)[:, None]
    np.testing.assert_allclose(energy(1e20 * scales * w), want, 1e-4)
    simplex = jnp.eye(4)  # All 12 ordered pairs are sqrt(2) apart.
    assert energy(simplex) == pytest.approx(12 / 2**0.5, rel=1e-6)
    assert energy(jnp.zeros((4, 3))) == 0
    with_dead = jnp.pad(w, ((0, 2), (0, 0)))
    np.testing.assert_allclose(energy(with_dead), want, rtol=1e-5)
    twins = energy(jnp.ones((2, 3)))
    assert twins == pytest.approx(2 / 2 / float(jnp.finfo(jnp.float32).eps) ** 0.5)


def test_probe_is_the_cosine_of_a_vector_and_its_image():
    r = rotations(3, 6)
    v = gaussian(3, 6, seed=9)
    turned = np.einsum("bij,bj->bi", r, v)
    norms = np.linalg.norm(v, axis=-1) * np.linalg.norm(turned, axis=-1)
    want = (turned * v).sum(-1) / norms
    np.testing.assert_allclose(d.probe(r, jnp.float32(v)), want, atol=1e-6)
    np.testing.assert_allclose(
        d.probe(1e-20 * r, 1e20 * jnp.float32(v)), want, atol=1e-6
    )
    one = d.probe(r, jnp.float32(v[0]))  # One vector for all matrices.
    assert one[0] == pytest.approx(want[0], abs=1e-6)
    assert one.shape == (3,)


@pytest.mark.broad
def test_random_probe_is_constant_and_close_to_the_trace():
    """Its mean is Tr(R) / m and its spread O(1 / sqrt(m)) (POET, Eq. 9 and 13)."""
    r = rotations(1, 64)[0] * 0.3 + jnp.eye(64) * 0.7
    r = jnp.linalg.qr(r)[0]
    r = r * jnp.sign(jnp.diagonal(r))
    vectors = jnp.float32(gaussian(200, 64, seed=5))
    draws = np.asarray(jax.jit(d.probe)(jnp.broadcast_to(r, (200, 64, 64)), vectors))
    mean = float(jnp.trace(r)) / 64
    assert d.mean_probe(r) == pytest.approx(mean, rel=1e-5)
    trace2 = float(jnp.trace(r @ r))
    variance = (64 + trace2 - 2 * 64 * mean**2) / (64 * 66)
    assert abs(draws.mean() - mean) < 5 * (variance / 200) ** 0.5
    assert draws.std() == pytest.approx(variance**0.5, rel=0.2)
    assert d.probe(r, seed=3) == d.probe(r, seed=3)
    assert d.probe(r, seed=3) != d.probe(r, seed=4)


def test_probe_of_zero_and_of_identity():
    assert d.probe(jnp.zeros((3, 3))) == 0
    assert d.probe(jnp.eye(3), jnp.zeros(3)) == 0
    assert d.probe(jnp.eye(3, dtype=jnp.bfloat16)) == pytest.approx(1, abs=1e-6)
    assert d.mean_probe(-jnp.eye(3)) == -1


def test_coverage_counts_changed_entries():
    before = jnp.float32(gaussian(2, 3, 4))
    after = before.at[0, 1].multiply(2.0).at[1, 0, 0].add(1.0)
    np.testing.assert_allclose(d.coverage(before, after), [4 / 12, 1 / 12], rtol=1e-6)
    np.testing.assert_array_equal(d.coverage(before, before), [0, 0])
    half = jnp.ones((2, 2), jnp.bfloat16)
    assert d.coverage(half, half + jnp.bfloat16(1e-4)) == 0  # Rounded away.


@pytest.mark.broad
def test_updates_per_entry_by_hand():
    turn = jnp.eye(4).at[jnp.array([0, 2]), jnp.array([0, 2])].set(0.0)
    turn = turn.at[0, 2].set(1.0).at[2, 0].set(-1.0)
    both = np.array([[1, 0, 1, 0], [2, 1, 2, 1]])
    p = jnp.eye(2).at[1, 1].set(-1.0)
    np.testing.assert_array_equal(d.updates_per_entry(turn, p), both)
    np.testing.assert_array_equal(d.updates_per_entry(turn, None), [[1, 0, 1, 0]])
    np.testing.assert_array_equal(d.updates_per_entry(None, p), [[0], [1]])


@pytest.mark.broad
def test_under_vmap():
    @jax.jit
    def measured(x):
        of_one = (d.orthogonality_error, d.norm_spread, d.probe, d.mean_probe)
        return [of(x) for of in (*of_one, energy)] + [d.coverage(x, jnp.abs(x))]

    x = jnp.float32(gaussian(3, 4, 4))
    for got, want in zip(jax.vmap(measured)(x), measured(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`r` must be square"):
        d.probe(jnp.ones((3, 4)))
    with pytest.raises(ValueError, match=r"`v` must hold vectors of length 3"):
        d.probe(jnp.eye(3), jnp.ones(4))
    with pytest.raises(ValueError, match=r"`side` must be one of 'out', 'in'"):
        d.norm_spread(jnp.eye(3), side="rows")
    with pytest.raises(ValueError, match=r"`after` must have the shape"):
        d.coverage(jnp.ones((2, 2)), jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"`r` and `p` must not both be None"):
        d.updates_per_entry(None, None)
