"""The measures that notebooks define, against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import (
    gaussian,
    matrix_with_singular_values,
    near_singular,
    orthonormal,
    polar,
)
from _notebooks import definitions

from optax_matrix import diagnostics, linalg

SPECTRA = definitions(
    "papers/03_spectra",
    *("relative_spectrum", "spectral_entropy", "distance", "finite_step_error"),
    *("preconditioning_bias", "SLOPE", "newton_schulz_bound", "linear_regime_ends"),
)
SUBSPACES = definitions(
    "papers/05_subspaces",
    *("captured", "basis_stability", "shares_of_energy", "effective_rank"),
)
ORTHOGONAL = definitions(
    "papers/06_orthogonal_training",
    *("probe", "mean_probe", "coverage", "updates_per_entry"),
)
SCALINGS = {
    "none": lambda x: x,
    "R": linalg.scale_rows,
    "C": linalg.scale_columns,
    "RC": linalg.scale_rows_and_columns,
}


def right_side(x, steps):
    """The bound of Theorem 3.1 in NumPy, with kappa_i and the stable rank."""
    s = np.linalg.svd(x, compute_uv=False)
    s = s[s > 1e-10 * s[0]]
    kappa, sr = s[0] / s, (s**2).sum() / s[0] ** 2
    growth = SPECTRA.SLOPE ** np.arange(steps + 1)
    short = np.maximum(1 - growth[:, None] / (kappa * sr**0.5), 0)
    return np.sqrt((short**2).mean(-1))


@pytest.mark.broad
def test_theorem_3_1_holds():
    x = near_singular(6, 10, smallest=1e-3)
    bound = SPECTRA.newton_schulz_bound(jnp.float32(x), 6)
    np.testing.assert_allclose(bound, right_side(x, 6), rtol=1e-3, atol=1e-6)
    errors = diagnostics.newton_schulz_errors(jnp.float32(x), 6)
    assert (bound <= errors + 1e-6).all()
    assert bound[2] > 0.5 * errors[2]  # It says something.


@pytest.mark.broad
def test_linear_regimes_end_where_the_theorem_says():
    x, a = near_singular(5, 8, smallest=1e-4), SPECTRA.SLOPE
    got = SPECTRA.linear_regime_ends(jnp.float32(x))
    sr, kappa = np.linalg.norm(x) ** 2, 1e4  # Its largest singular value is one.
    log = lambda y: np.log(y) / np.log(a)
    assert got[0] == pytest.approx(log(sr**0.5), abs=1e-4)
    assert got[-1] == pytest.approx(log(kappa * sr**0.5), rel=1e-3)
    assert got[-1] - got[0] == pytest.approx(log(kappa), rel=1e-3)
    # Until then a value is no larger than its linear growth, which reaches one there.
    s = np.linalg.svd(x, compute_uv=False) / np.linalg.norm(x)
    np.testing.assert_allclose(s * a ** np.asarray(got, np.float64), 1, rtol=1e-3)


@pytest.mark.broad
def test_values_at_the_level_of_rounding_never_leave_the_linear_regime():
    x = matrix_with_singular_values([3.0, 1.0], 5, 4)
    ends = SPECTRA.linear_regime_ends(jnp.float32(x))
    assert np.isfinite(ends[:2]).all()
    assert np.isinf(ends[2:]).all()
    bound = SPECTRA.newton_schulz_bound(jnp.float32(x), 3)
    np.testing.assert_allclose(bound, right_side(x, 3), atol=1e-5)


@pytest.mark.daily("R", "C")
@pytest.mark.broad
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_equation_5(scaling):
    """Both terms, and that their sum bounds the distance from the exact factor."""
    x = gaussian(2, 5, 8) * np.array([1, 2, 4, 0.1, 0.3])[:, None]
    m = jnp.float32(x)
    scaled = np.asarray(scaling(m), np.float64)
    bias = SPECTRA.preconditioning_bias(m, scaling)
    want = np.linalg.norm(polar(scaled) - polar(x), axis=(-2, -1))
    np.testing.assert_allclose(bias, want, rtol=1e-3, atol=1e-5)
    error = SPECTRA.finite_step_error(scaling(m))
    result = np.asarray(linalg.newton_schulz(scaling(m)), np.float64)
    want = np.linalg.norm(result - polar(scaled), axis=(-2, -1))
    np.testing.assert_allclose(error, want, rtol=1e-3)
    last = diagnostics.newton_schulz_errors(scaling(m))[..., -1] * 5**0.5
    np.testing.assert_allclose(error, last, rtol=1e-3)
    whole = np.linalg.norm(result - polar(x), axis=(-2, -1))
    assert (whole <= (error + bias) * (1 + 1e-5)).all()


@pytest.mark.broad
def test_equilibration_reduces_the_error_and_costs_a_bias():
    """Figure 7 for rows whose norms differ by 1000: the terms of Eq. 5 trade off."""
    x = jnp.float32(gaussian(8, 16) * np.geomspace(1, 1e-3, 8)[:, None])
    error = SPECTRA.finite_step_error
    assert error(linalg.scale_rows(x)) < error(x)
    assert SPECTRA.preconditioning_bias(x, linalg.scale_rows) > 0.1


@pytest.mark.broad
def test_entropy_effective_rank_and_shares_are_their_formulas():
    x = gaussian(2, 5, 7)
    s = np.linalg.svd(x, compute_uv=False)
    p = s**2 / (s**2).sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1)
    x = jnp.float32(x)
    np.testing.assert_allclose(SPECTRA.spectral_entropy(x), entropy, rtol=1e-4)
    np.testing.assert_allclose(SUBSPACES.effective_rank(x), np.exp(entropy), rtol=1e-4)
    np.testing.assert_allclose(SUBSPACES.shares_of_energy(x), p, rtol=1e-4)


def test_captured_energy():
    x = gaussian(2, 6, 4)
    u = np.stack([orthonormal(6, 2, seed=i) for i in range(2)])
    norm = lambda y: np.linalg.norm(y, axis=(-2, -1)) ** 2
    want = norm(u.swapaxes(-1, -2) @ x) / norm(x)
    captured = jax.jit(SUBSPACES.captured)
    got = captured(np.float32(x), np.float32(u))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    left = np.linalg.svd(x)[0]  # The leading vectors hold the leading shares.
    best = captured(np.float32(x), np.float32(left[..., :2]))
    shares = np.asarray(jax.jit(SUBSPACES.shares_of_energy)(np.float32(x)))
    np.testing.assert_allclose(best, shares[..., :2].sum(-1), rtol=1e-5)


@pytest.mark.broad
def test_basis_stability_compares_successive_bases_of_a_tree():
    draw = lambda i: np.stack([orthonormal(6, 2, seed=10 * i + j) for j in range(2)])
    u, v, w = (jnp.float32(draw(i)) for i in range(3))
    got = SUBSPACES.basis_stability([{"a": x, "b": (x[..., :1],)} for x in (u, v, w)])
    cosines = diagnostics.eigenvector_cosines
    want = np.stack([cosines(u, v), cosines(v, w)])
    np.testing.assert_allclose(got["a"], want, rtol=1e-6)
    np.testing.assert_allclose(got["b"][0], want[..., :1], rtol=1e-6)


@pytest.mark.broad
def test_probe_is_the_cosine_of_a_vector_and_its_image():
    r = np.stack([orthonormal(6, 6, seed=i) for i in range(3)])
    v = np.asarray(jax.random.normal(jax.random.key(0), (6,)), np.float64)
    got = ORTHOGONAL.probe(jnp.float32(r))
    np.testing.assert_allclose(got, (r @ v) @ v / (v @ v), atol=1e-6)
    assert ORTHOGONAL.probe(jnp.eye(3)) == pytest.approx(1, abs=1e-6)


@pytest.mark.broad
def test_mean_of_probes_is_the_normalized_trace():
    """Of random vectors; their spread is O(1 / sqrt(m)) (POET, Eq. 9 and 13)."""
    r = np.linalg.qr(0.3 * orthonormal(64, 64) + 0.7 * np.eye(64))[0]
    r = r * np.sign(np.diagonal(r))
    mean = np.trace(r) / 64
    assert ORTHOGONAL.mean_probe(jnp.float32(r)) == pytest.approx(mean, rel=1e-5)
    # A probe of Q'RQ is one of R with another vector; the trace stays.
    turns = [orthonormal(64, 64, seed=i) for i in range(200)]
    probes = ORTHOGONAL.probe(jnp.float32(np.stack([q.T @ r @ q for q in turns])))
    variance = (64 + np.trace(r @ r) - 2 * 64 * mean**2) / (64 * 66)
    assert abs(np.mean(probes) - mean) < 5 * (variance / 200) ** 0.5
    assert np.std(probes) == pytest.approx(variance**0.5, rel=0.2)


def test_coverage_counts_changed_entries():
    before = np.float32(gaussian(2, 3, 4))
    after = before.copy()
    after[0, 1] *= 2
    after[1, 0, 0] += 1
    coverage = jax.jit(ORTHOGONAL.coverage)
    np.testing.assert_allclose(coverage(before, after), [4 / 12, 1 / 12], rtol=1e-6)
    np.testing.assert_array_equal(coverage(before, before), [0, 0])


@pytest.mark.broad
def test_updates_per_entry_by_hand():
    turn = jnp.eye(4).at[jnp.array([0, 2]), jnp.array([0, 2])].set(0.0)
    turn = turn.at[0, 2].set(1.0).at[2, 0].set(-1.0)
    p = jnp.eye(2).at[1, 1].set(-1.0)
    got = ORTHOGONAL.updates_per_entry(turn, p)
    np.testing.assert_array_equal(got, [[1, 0, 1, 0], [2, 1, 2, 1]])
