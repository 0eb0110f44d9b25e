"""The statements of MuonEq, checked in float64 with the library's kernels.

Elsewhere: the MVR form of Nesterov's momentum (`transforms/test_momentum.py`), and the
scalar polynomial after five steps (`linalg/test_newton_schulz.py`).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, orthonormal, rank_one

from optax_matrix import linalg
from optax_matrix.linalg import CUBIC, JORDAN, TAYLOR

pytestmark = pytest.mark.usefixtures("x64")

TABLES = {"jordan": JORDAN[0], "taylor": TAYLOR[0], "cubic": CUBIC[0]}
# Perturbations of a matrix that is exactly orthogonal once it is normalized.
SIZES = 2.0 ** -np.arange(4, 10)

scale_rows = partial(linalg.scale_rows, eps=0.0)
scale_columns = partial(linalg.scale_columns, eps=0.0)


def call(kernel, x):
    return np.asarray(kernel(jnp.asarray(x)))


def spectral(x):
    return np.linalg.norm(x, 2)


def newton_schulz(x, row, steps):
    """X_k of Theorem 3.1; X_0 is the matrix over its Frobenius norm."""
    if steps == 0:
        return x / np.linalg.norm(x)
    kernel = partial(linalg.newton_schulz, coefficients=[row], steps=steps, eps=0.0)
    return call(kernel, x)


def order(errors):
    """Slopes of the errors over `SIZES`, in the log."""
    return np.log2(np.divide(errors[:-1], errors[1:]))


# Theorem 3.1: the finite-step iteration and the spectrum of its input.


@pytest.mark.parametrize("row", TABLES.values(), ids=TABLES)
def test_theorem_3_1_its_condition_holds_for_the_published_coefficients(row):
    """a > 1 and 0 < q(t) <= a on [0, 1], with q(t) = a + b t + c t^2."""
    a, b, c = row
    t = np.linspace(0, 1, 1001)
    q = a + b * t + c * t**2
    assert a > 1
    assert q.min() > 0
    assert q.max() <= a


@pytest.mark.parametrize("row", TABLES.values(), ids=TABLES)
def test_theorem_3_1_iterates_keep_the_singular_vectors_and_follow_phi(row):
    """X_k = U diag(s^(k)) V' with s <- phi(s), from s = sigma / |G|_F; zeros stay."""
    sigma = np.array([5.0, 2.0, 0.3, 1e-3])
    g = matrix_with_singular_values(sigma, 8, 8)  # Of rank 4.
    u, v = orthonormal(8, 4, 0), orthonormal(8, 4, 1)
    s = sigma / np.linalg.norm(sigma)
    a, b, c = row
    for k in range(5):
        want = (u * s) @ v.T
        np.testing.assert_allclose(newton_schulz(g, row, k), want, atol=1e-12)
        s = a * s + b * s**3 + c * s**5


def lower_bound(sigma, growth, k, norm=None):
    """The right side of the bound, times sqrt(r); `norm` is that of all values."""
    sr = (norm or np.linalg.norm(sigma)) ** 2 / sigma[0] ** 2
    kappa = sigma[0] / sigma
    return np.linalg.norm(np.maximum(1 - growth**k / (kappa * sr**0.5), 0))


STEPS = (0, 1, 3, 7)


@pytest.mark.parametrize("row", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (8, 8)])
def test_theorem_3_1_lower_bound_of_the_error(row, shape):
    """|X_k - Orth(G)|_F >= |(1 - a^k / (kappa_i sqrt(sr)))_+|; any rank, any shape."""
    steps = STEPS if shape == (8, 8) else STEPS[2:3]
    for smallest in (0.5, 1e-2, 1e-6):
        sigma = np.geomspace(1, smallest, 4)
        g = matrix_with_singular_values(sigma, *shape)
        orth = call(linalg.polar_svd, g)
        for k in steps:
            error = np.linalg.norm(newton_schulz(g, row, k) - orth)
            assert error >= lower_bound(sigma, row[0], k) - 1e-9


@pytest.mark.parametrize("row", TABLES.values(), ids=TABLES)
def test_theorem_3_1_no_smaller_growth_than_a_bounds_the_error(row):
    """The bound is sharp: in the directions of tiny values the error is nearly it."""
    sigma = np.array([1.0, 2e-5, 2e-5, 2e-5])
    g = matrix_with_singular_values(sigma, 4, 4)
    tiny = orthonormal(4, 4, 0)[:, 1:]
    for k in STEPS:
        x = newton_schulz(g, row, k) - call(linalg.polar_svd, g)
        error = np.linalg.norm(tiny.T @ x)
        floor = lower_bound(sigma[1:], row[0], k, np.linalg.norm(sigma))
        assert floor * (1 - 1e-12) <= error <= 1.01 * floor
    assert error < lower_bound(sigma[1:], 0.98 * row[0], k, np.linalg.norm(sigma))


def test_theorem_3_1_the_transition_lasts_log_a_kappa_steps():
    """tau_i = log_a(kappa_i sqrt(sr)): tau_r - tau_1 = log_a kappa.

    A value follows a^k sigma / |G|_F until its tau_i. So it comes above one half at a
    number of steps that differs from tau_i by the same for all values, but for the
    rounding to whole steps.
    """
    a = JORDAN[0][0]
    sigma = np.geomspace(1, 1e-8, 30)
    g = matrix_with_singular_values(sigma, 30, 30)
    sr = np.sum(sigma**2) / sigma[0] ** 2
    tau = np.log((sigma[0] / sigma) * sr**0.5) / np.log(a)
    np.testing.assert_allclose(tau, np.log(np.linalg.norm(g) / sigma) / np.log(a))
    width = np.log(sigma[0] / sigma[-1]) / np.log(a)
    assert tau[-1] - tau[0] == pytest.approx(width)
    assert width > 14
    u, v = orthonormal(30, 30, 0), orthonormal(30, 30, 1)
    values = [np.diag(u.T @ newton_schulz(g, JORDAN[0], k) @ v) for k in range(20)]
    linear = (sigma / np.linalg.norm(g)) * a ** np.arange(20)[:, None]
    before = linear < 0.1
    np.testing.assert_allclose(np.array(values)[before], linear[before], rtol=0.03)
    crossed = np.argmax(np.array(values) > 0.5, axis=0)
    assert np.ptp((crossed - tau)[tau > 1]) <= 1


# Proposition 3.2 with Lemmas C.1 and C.2: normalization as whitening of order zero.


def nearly_orthogonal(t, m, n, spread=1.0):
    """Orthonormal columns, perturbed by t, and of norms from 1 to `spread`."""
    x = orthonormal(m, n, seed=2) + t * gaussian(m, n, seed=3)
    return x / np.linalg.norm(x, axis=0) * np.geomspace(1, spread, n)


def column_parts(m):
    """N_c, D_c, C_c and L_c; D_c is diagonal, so the Sylvester equation is by entry."""
    d = np.linalg.norm(m, axis=0)
    n = call(scale_columns, m)
    np.testing.assert_allclose(n, m / d, rtol=1e-12)
    c = n.T @ n - np.eye(d.size)
    l = d[:, None] * c * d / (d[:, None] + d)
    return n, d, c, l


@pytest.mark.parametrize("shape", [(8, 4), (8, 8)])
@pytest.mark.parametrize("side", ["columns", "rows"])
def test_proposition_3_2_polar_factor_around_a_normalized_matrix(side, shape):
    """Orth(M) = N - N L D^-1 + O(|DCD|^2), D L + L D = D C D; rows by transposing.

    The remainder falls as the square of the perturbation, and without the term of
    first order as the perturbation. (The proofs call n and m what the proposition
    calls q and p.)
    """
    second, first = [], []
    for t in SIZES:
        m = nearly_orthogonal(t, *shape, spread=9.0)
        n, d, _, l = column_parts(m)
        if side == "columns":
            orth = call(linalg.polar_svd, m)
        else:
            np.testing.assert_allclose(call(scale_rows, m.T), n.T, rtol=1e-12)
            orth = call(linalg.polar_svd, m.T).T
        second.append(spectral(orth - (n - n @ l / d)))
        first.append(spectral(orth - n))
    np.testing.assert_allclose(order(second)[-3:], 2, atol=0.1)
    np.testing.assert_allclose(order(first)[-3:], 1, atol=0.1)


def test_lemma_c_1_derivative_of_the_inverse_root():
    """(A + E)^(-1/2) = A^(-1/2) - A^(-1/2) L A^(-1/2) + O(|E|^2), S L + L S = E."""
    w, u = np.geomspace(0.5, 4, 5), orthonormal(5, 5, seed=1)
    e = gaussian(5, 5, seed=2)
    e = (e + e.T) / 2
    power = lambda a, p: (lambda w, u: (u * w**p) @ u.T)(*np.linalg.eigh(a))
    a = (u * w) @ u.T
    root = np.sqrt(w)
    l = u @ ((u.T @ e @ u) / (root[:, None] + root)) @ u.T
    np.testing.assert_allclose(power(a, 0.5) @ l + l @ power(a, 0.5), e, atol=1e-12)
    inverse = power(a, -0.5)
    errors = [
        spectral(power(a + t * e, -0.5) - inverse + t * inverse @ l @ inverse)
        for t in SIZES
    ]
    np.testing.assert_allclose(order(errors)[-3:], 2, atol=0.1)


def test_lemma_c_2_size_of_the_correction():
    """|L| <= |E| / (2 lambda_min(S)), so |L D^-1| <= kappa(D)^2 |C| / 2.

    Both hold with equality where S, or D, is a multiple of the identity.
    """
    for spread in (1.0, 3.0, 30.0):
        m = nearly_orthogonal(0.1, 8, 4, spread)
        _, d, c, l = column_parts(m)
        e = d[:, None] * c * d
        kappa = d.max() / d.min()
        slack = 1e-12
        assert spectral(l) <= spectral(e) / (2 * d.min()) + slack
        assert spectral(l / d) <= kappa**2 * spectral(c) / 2 + slack
        if spread == 1.0:
            assert spectral(l) == pytest.approx(spectral(e) / (2 * d.min()))
            assert spectral(l / d) == pytest.approx(kappa**2 * spectral(c) / 2)


# Proposition E.1, Corollaries 3.3 and E.2: what is left after normalization.


@pytest.mark.parametrize("shape", [(8, 4), (8, 8)])
@pytest.mark.parametrize("side", ["columns", "rows"])
def test_corollary_3_3_and_proposition_e_1_polar_factor_of_a_normalized_one(
    side, shape
):
    """Orth(N) = N - C N / 2 + O(|C|^2) for rows, N - N C / 2 for columns.

    So |Orth(N) - N| <= |N| |C| / 2 to first order, and C has no diagonal.
    """
    errors = []
    for t in SIZES:
        m = nearly_orthogonal(t, *shape, spread=9.0)
        n = call(scale_columns, m) if side == "columns" else call(scale_rows, m.T)
        orth = call(linalg.polar_svd, n)
        n, orth = (n, orth) if side == "columns" else (n.T, orth.T)
        c = n.T @ n - np.eye(n.shape[1])
        np.testing.assert_allclose(np.diagonal(c), 0, atol=1e-13)
        errors.append(spectral(orth - (n - n @ c / 2)))
        step = spectral(orth - n)
        assert step <= spectral(n) * spectral(c) / 2 + errors[-1]
    np.testing.assert_allclose(order(errors)[-3:], 2, atol=0.1)
    assert step > 0.49 * spectral(n) * spectral(c)  # No smaller factor than one half.


@pytest.mark.parametrize("spread", [1.0, 1.5])
def test_proposition_e_1_and_remark_3_2_without_normalization_the_scales_are_left(
    spread,
):
    """|Orth(M) - M| <= |N| |D - I| + kappa(D)^2 |N| |C| / 2 + O(|DCD|^2).

    The first term is of order zero: it stays as the perturbation goes to zero.
    """
    for t in SIZES:
        m = nearly_orthogonal(t, 8, 4, spread)
        n, d, c, l = column_parts(m)
        orth = call(linalg.polar_svd, m)
        remainder = spectral(orth - (n - n @ l / d))
        bound = spectral(n) * np.abs(d - 1).max()
        bound += (d.max() / d.min()) ** 2 / 2 * spectral(n) * spectral(c)
        assert spectral(orth - m) <= bound + remainder
    assert spectral(orth - m) == pytest.approx(spread - 1, abs=0.02)


HADAMARD = np.kron([[1, 1], [1, -1]], np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]]))


@pytest.mark.parametrize("shape", [(8, 4), (4, 8), (8, 8)])
def test_corollary_e_2_polar_factor_of_a_matrix_normalized_on_both_sides(shape):
    """Orth(M) = M - M C / 2 + O(|C|^2) with C = M' M - I, M of form RC.

    The RC of Section 2 depends on the scale of M, so that a small C fixes that scale;
    here it is the library's, over the root of the long side. (The corollary prints
    D^(-1/2) with the D of Proposition 3.2, which are norms and not their squares. Its
    expansion is one in C alone.) Rows and columns may have any scales.
    """
    p, q = shape
    errors = []
    for t in SIZES:
        x = HADAMARD[:p, :q] / 8**0.5 + t * gaussian(p, q, seed=4)
        m = np.geomspace(1, 50, p)[:, None] * x * np.geomspace(3, 0.1, q)
        rc = partial(linalg.scale_rows_and_columns, eps=0.0)
        hat = call(rc, m) / max(p, q) ** 0.5
        orth = call(linalg.polar_svd, hat)
        hat, orth = (hat.T, orth.T) if p < q else (hat, orth)
        c = hat.T @ hat - np.eye(hat.shape[1])
        errors.append(spectral(orth - (hat - hat @ c / 2)))
        step = spectral(orth - hat)
        assert step <= spectral(hat) * spectral(c) / 2 + errors[-1]
    np.testing.assert_allclose(order(errors)[-3:], 2, atol=0.1)
    assert step > 0.49 * spectral(hat) * spectral(c)


# Lemmas H.1 and H.2, on which the convergence of MuonEq (R) rests.


def momenta():
    """Matrices of all kinds, rows 12 orders of magnitude apart among them."""
    rows = gaussian(4, 8, seed=1) * np.geomspace(1e-6, 1e6, 4)[:, None]
    holes = gaussian(8, 8, seed=2) * (np.arange(8) % 2)[:, None]
    return {
        "wide": gaussian(4, 8, seed=3),
        "tall": gaussian(8, 4, seed=4),
        "square": gaussian(8, 8, seed=5),
        "rows": rows,
        "zero rows": holes,
        "rank one": rank_one(4, 8),
        "rank two": matrix_with_singular_values([2.0, 1.0], 8, 4),
        "one row": gaussian(1, 8, seed=6),
        "zero": np.zeros((4, 8)),
    }


@pytest.mark.parametrize("name", momenta())
def test_lemma_h_1_and_remark_3_4_alignment_of_the_row_normalized_update(name):
    """<M, Orth(P(M) M)> >= |M|_F / sqrt(m), and |Orth|_F^2 = rank <= n."""
    m = momenta()[name]
    r = call(scale_rows, m)
    o = call(linalg.polar_svd, r)
    assert np.sum(m * o) >= np.linalg.norm(m) / m.shape[0] ** 0.5 * (1 - 1e-12)
    rank = np.linalg.matrix_rank(r)
    assert np.sum(o**2) == pytest.approx(rank)
    assert rank <= m.shape[1]


def test_lemma_h_1_no_larger_constant_holds():
    """Parallel rows, one of which is much longer than the others: equality."""
    m = np.outer([1.0, *[1e-4] * 7], gaussian(4))
    o = call(linalg.polar_svd, call(scale_rows, m))
    ratio = np.sum(m * o) / np.linalg.norm(m) * m.shape[0] ** 0.5
    assert 1 <= ratio < 1.001


def ns5(x):
    """Lemma H.2's map; a row-normalized matrix has a Frobenius norm of at least one."""
    assert np.linalg.norm(x) >= 1 - 1e-12
    return newton_schulz(x, TAYLOR[0], 5)


def h_2(x):
    """delta and eps of Lemma H.2; both norms are those on the range of x."""
    s = np.linalg.svd(x, compute_uv=False)
    s = s[s > 1e-10 * s[0]] / np.linalg.norm(x)
    error = spectral(ns5(x) - call(linalg.polar_svd, x))
    return 1 - s[-1] ** 2, error


@pytest.mark.parametrize("name", sorted(momenta().keys() - {"zero"}))
def test_lemma_h_2_error_of_five_steps(name):
    """eps <= 1 - sqrt(1 - delta^(3^5)) <= delta^(3^5) < 1, delta = |Pi - Y_0 Y_0'|."""
    delta, error = h_2(call(scale_rows, momenta()[name]))
    bound = 1 - np.sqrt(1 - delta ** (3**5))
    assert delta < 1
    assert error <= bound + 1e-12
    assert bound <= delta ** (3**5) + 1e-12
    assert bound < 1


def test_lemma_h_2_one_step_cubes_delta_and_no_higher_power_holds():
    """delta' = 5/8 delta^3 + 15/64 delta^4 + 9/64 delta^5 <= delta^3, equal at one."""
    delta = np.linspace(0, 1, 101)
    s = np.sqrt(1 - delta)
    a, b, c = TAYLOR[0]
    new = 1 - (a * s + b * s**3 + c * s**5) ** 2
    exact = 5 / 8 * delta**3 + 15 / 64 * delta**4 + 9 / 64 * delta**5
    np.testing.assert_allclose(new, exact, atol=1e-14)
    assert (new <= delta**3 + 1e-14).all()
    # A matrix that 4^5 would rule out.
    rows = matrix_with_singular_values([1.0, 1e-4], 2, 4)
    delta, error = h_2(call(scale_rows, rows))
    assert error > 1 - np.sqrt(1 - delta ** (4**5))


@pytest.mark.parametrize("name", sorted(momenta().keys() - {"zero"}))
def test_lemma_h_4_alignment_of_five_steps(name):
    """<M, NS5(P M)> >= (1 - eps) |M|_F / sqrt(m), |NS5|_F^2 <= (1 + eps)^2 n."""
    m = momenta()[name]
    r = call(scale_rows, m)
    _, eps = h_2(r)
    o = ns5(r)
    floor = (1 - eps) * np.linalg.norm(m) / m.shape[0] ** 0.5
    assert np.sum(m * o) >= floor * (1 - 1e-12)
    assert np.sum(o**2) <= (1 + eps) ** 2 * m.shape[1]


def test_proposition_3_4_its_constant_is_at_least_1_144():
    """chi >= 1/144 for rho <= 3/2, with equality at rho_r = rho_c = 3/2."""
    r, c = np.meshgrid(np.linspace(1, 1.5, 51), np.linspace(1, 1.5, 51))
    chi = (r + 1) * (c + 1) / (4 * r * c) - (3 * r * c - r - c - 1) / 4
    assert chi.min() == pytest.approx(1 / 144)
    assert np.unravel_index(chi.argmin(), chi.shape) == (50, 50)
    assert np.sqrt(1 + 5 / 4) == 1.5  # eps >= 4/5 G^2 max(m, n).


def test_nothing_here_runs_in_float32():
    assert call(scale_rows, np.eye(2)).dtype == np.float64
    assert jax.config.jax_enable_x64
