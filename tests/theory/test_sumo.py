"""The statements of SUMO, checked in float64.

Elsewhere: updates are the paper's (`recipes/test_low_rank_recipes.py`).
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, orthonormal, polar
from _reference.low_rank_recipes import cubic

import optax_matrix as om
from optax_matrix.linalg import CUBIC, JORDAN, TAYLOR, newton_schulz

# Lemma 3.1: the moment of a reversible layer becomes one of rank one.

ETA, SLOW, FAST = 0.1, 0.5, 2.0  # SLOW, FAST: the two smallest eigenvalues of S.
LEFT, RIGHT, START = orthonormal(5, 5, 0), orthonormal(4, 4, 1), gaussian(5, 4, seed=2)


def eigenvalues(*slow, fast=((1, 1),)):
    """Those of S for the eigenvectors v_j (x) u_i, as a matrix over i and j."""
    table = np.linspace(3.0, 9.0, START.size).reshape(START.shape)
    for value, places in ((FAST, fast), (SLOW, slow)):
        for place in places:
            table[place] = value
    return table


def applied(table, g):
    """S g, where S is the average of C (x) B with B = u_i u_i' and C = v_j v_j'."""
    return LEFT @ (table * (LEFT.T @ g @ RIGHT)) @ RIGHT.T


def share_beyond_rank_one(m):
    """kappa_M: the relative error of the best approximation of rank one."""
    s = np.linalg.svd(m, compute_uv=False)
    return np.sum(s[1:] ** 2) / np.sum(s**2)


def history(table, beta, steps):
    """kappa_M of M_t = beta M_{t-1} + G_t, G_t = (I - eta S)^t G_0; both rescaled."""
    g, m, shares = START, np.zeros_like(START), []
    for _ in range(steps):
        m = beta * m + g
        shares.append(share_beyond_rank_one(m))
        size = np.linalg.norm(m)
        m, g = m / size, (g - ETA * applied(table, g)) / size
    return np.array(shares)


def rate_of(beta):
    return (max(beta, 1 - ETA * FAST) / max(beta, 1 - ETA * SLOW)) ** 2


def late_slopes(shares):
    seen = shares[shares > 1e-20][-10:]
    return seen[1:] / seen[:-1]


def test_lemma_3_1_its_gradients_are_powers_of_one_matrix():
    """G = mean(A_i - B_i W C_i), B and C positive semidefinite, and W <- W + eta G."""
    table = eigenvalues((0, 0))
    pairs = [(i, j) for i in range(5) for j in range(4)]
    b = [len(pairs) * table[i, j] * np.outer(LEFT[:, i], LEFT[:, i]) for i, j in pairs]
    c = [np.outer(RIGHT[:, j], RIGHT[:, j]) for _, j in pairs]
    w, want = np.zeros_like(START), START
    for _ in range(5):
        terms = [START - x @ w @ y for x, y in zip(b, c, strict=True)]
        g = np.mean(terms, axis=0)
        np.testing.assert_allclose(g, want, atol=1e-12)
        w, want = w + ETA * g, want - ETA * applied(table, want)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_lemma_3_1_rate_at_which_the_moment_becomes_one_of_rank_one(beta):
    """kappa_M(t) = O(C^-t), C^-1 = (max(b, 1 - eta l_2) / max(b, 1 - eta l_1))^2.

    Here 1 - eta l_1 = 0.95 and 1 - eta l_2 = 0.8. The rate is exact where the two
    eigenvectors share no factor. For a single product, S = C (x) B, they do share
    one, and kappa_M falls by its square if beta < 1 - eta l_2 as well. (The proof
    prints |M|^2 for M once.)
    """
    shares = history(eigenvalues((0, 0)), beta, 250)
    np.testing.assert_allclose(late_slopes(shares), rate_of(beta), rtol=0.01)
    single = eigenvalues((0, 0), fast=((0, 1), (1, 0)))
    shares = history(single, beta, 250)
    if beta < 0.9:
        np.testing.assert_allclose(late_slopes(shares), rate_of(beta) ** 2, rtol=0.02)


def test_lemma_3_1_needs_a_decay_below_that_of_the_gradients():
    """A condition that is missing: beta < 1 - eta l_1, or else C = 1.

    With a larger beta, 0.99 say, M_t / beta^t tends to the sum of beta^-s G_s. This
    has full rank, so kappa_M does not vanish.
    """
    table = eigenvalues((0, 0))
    beta = 0.99
    assert rate_of(beta) == 1
    # sum_s (beta^-1 (I - eta S))^s G_0 = (I - (I - eta S) / beta)^-1 G_0.
    limit = LEFT @ ((LEFT.T @ START @ RIGHT) / (1 - (1 - ETA * table) / beta)) @ RIGHT.T
    want = share_beyond_rank_one(limit)
    assert want > 0.01
    assert history(table, beta, 1000)[-1] == pytest.approx(want)
    assert history(table, 0.9, 1000)[-1] < 1e-20


def test_lemma_3_1_needs_a_part_of_rank_one_in_the_smallest_eigenspace():
    """A condition that is missing: |g|_2 = |g|_F for G_0's part in that eigenspace.

    It holds if the smallest eigenvalue is simple. Else kappa_M tends to that of the
    part, which is zero only if the eigenvectors share a factor.
    """
    part = LEFT[:, :2] @ np.diag(np.diag(LEFT.T @ START @ RIGHT)[:2]) @ RIGHT[:, :2].T
    shares = history(eigenvalues((0, 0), (1, 1), fast=((2, 2),)), 0.5, 300)
    assert shares[-1] == pytest.approx(share_beyond_rank_one(part))
    assert shares[-1] > 0.01
    assert history(eigenvalues((0, 0), (0, 1)), 0.5, 300)[-1] < 1e-20


@pytest.mark.usefixtures("x64")
def test_lemma_3_1_an_average_has_the_same_share():
    """`momentum` is (1 - beta) times the lemma's sum."""
    tx, g = om.momentum(0.9), START
    state, m = tx.init({"w": jnp.asarray(g)}), np.zeros_like(g)
    for _ in range(4):
        m = 0.9 * m + g
        updates, state = tx.update({"w": jnp.asarray(g)}, state)
        np.testing.assert_allclose(updates["w"], 0.1 * m, rtol=1e-6)
        g = g - ETA * applied(eigenvalues((0, 0)), g)


# Lemma 3.2: the error of Newton-Schulz.

SPECTRA = {
    f"{shape}-{decay}-{size}": (np.array([decay**-i for i in range(size)]), shape)
    for decay, size, shape in [
        (1.1, 4, "wide"),
        (1.5, 4, "tall"),
        (3.0, 4, "wide"),
        (10.0, 4, "wide"),
        (2.0, 8, "square"),
    ]
} | {"two": (np.array([1.0, 1.0, 1.0, 0.3]), "wide")}


def bound(s, i, power=2):
    """sqrt(r) (1 - 1 / kappa)^(2^i), kappa the condition number of A A'."""
    return s.size**0.5 * (1 - (s[-1] / s[0]) ** 2) ** (power**i)


def matrix(s, shape):
    m, n = {"wide": (s.size, 9), "tall": (9, s.size), "square": (s.size,) * 2}[shape]
    return matrix_with_singular_values(s, m, n, seed=3)


def largest(x):
    return np.linalg.norm(x, 2)


@pytest.mark.parametrize("name", SPECTRA)
def test_lemma_3_2_error_of_the_cubic_iteration_from_the_spectral_norm(name):
    """|E_i|_F <= sqrt(r) (1 - 1 / kappa)^(2^i), r = m, for i = 0, 1, ..., 6."""
    s, shape = SPECTRA[name]
    x = matrix(s, shape)
    for i in range(7):
        error = np.linalg.norm(polar(x) - cubic(x, i, largest))
        assert error <= bound(s, i) + 1e-13


def test_lemma_3_2_one_step_squares_the_error_of_the_squares():
    """With d = 1 - s^2 one step gives 3/4 d^2 + 1/4 d^3 <= d^2, equal at d = 1.

    Hence the bound. With 2.5^i as the exponent it is wrong.
    """
    d = np.linspace(0, 1, 101)
    s = np.sqrt(1 - d)
    new = 1 - ((3 * s - s**3) / 2) ** 2
    np.testing.assert_allclose(new, 3 / 4 * d**2 + d**3 / 4, atol=1e-14)
    assert (new <= d**2 + 1e-14).all()
    values = np.array([1.0, 0.5**0.5])
    x = matrix(values, "square")
    error = np.linalg.norm(polar(x) - cubic(x, 4, largest))
    assert bound(values, 4, power=2.5) < 1e-10 < 1e-8 < error <= bound(values, 4)


def test_lemma_3_2_its_proof_is_not_that_of_the_iteration():
    """The proof iterates on B = A A' / |A A'| and squares |X_k - O| at each step.

    The error e = 1 - s of a singular value becomes e^2 (3 - e) / 2, which is more than
    e^2. So the bound is false for the iteration of the proof, and true for the one on
    A / |A|, whose squares have the kappa of A A': the test above.
    """
    s = np.array([1.0, 0.9])
    x = matrix(s, "square")
    gram = x @ x.T
    e = 1 - s[1] ** 2
    for i in (1, 2, 3):
        e = e**2 * (3 - e) / 2
        error = np.linalg.norm(np.eye(2) - cubic(gram, i, largest))
        assert error == pytest.approx(e)
        limit = bound(s, i)
        assert error / limit > (1, 0.9, 1.4, 4)[i]
    assert np.linalg.norm(polar(x) - cubic(x, 3, largest)) < limit


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SPECTRA)
def test_lemma_3_2_from_the_frobenius_norm_kappa_is_another(name):
    """As Muon and the library start: the bound holds with |A|_F^2 / s_r^2 as kappa.

    With the lemma's kappa it does not where the values are close to one another. At
    kappa = 1 it would be zero: nothing limits the ratio.
    """
    s, shape = SPECTRA[name]
    x = jnp.asarray(matrix(s, shape))
    for i in (2, 5):
        kernel = partial(newton_schulz, coefficients=CUBIC, steps=i, eps=0.0)
        error = np.linalg.norm(polar(x) - kernel(x))
        np.testing.assert_allclose(kernel(x), cubic(x, i, np.linalg.norm), atol=1e-12)
        kappa = np.sum(s**2) / s[-1] ** 2
        assert error <= s.size**0.5 * (1 - 1 / kappa) ** (2**i) + 1e-13
    close = [np.array([1.0, 1.1**-1, 1.1**-2, 1.1**-3]), np.array([1.0, 1.0, 1.0, 0.9])]
    for values in close:
        y = matrix(values, "wide")
        error = np.linalg.norm(polar(y) - cubic(y, 2, np.linalg.norm))
        assert error > 3 * bound(values, 2)
    flat = orthonormal(4, 4)
    assert np.linalg.norm(flat - cubic(flat, 2, np.linalg.norm)) > 0.1
    assert bound(np.ones(4), 2) == 0


@pytest.mark.usefixtures("x64")
def test_lemma_3_2_holds_for_taylor_s_quintic_and_not_for_muon_s():
    """The paper calls the iteration Newton-Schulz 5. Jordan's does not converge.

    The quintic of Taylor cubes the error, so that 3^i holds in place of 2^i.
    """
    s = np.array([1.0, 0.8, 0.6, 0.5])
    x = jnp.asarray(matrix(s, "wide")) / np.linalg.norm(s)
    kappa = np.sum(s**2) / s[-1] ** 2
    limit = lambda base, i: 2 * (1 - 1 / kappa) ** (base**i)
    for i in (3, 5):
        kernel = partial(newton_schulz, steps=i, eps=0.0)
        error = lambda t: np.linalg.norm(polar(x) - kernel(x, coefficients=t))  # noqa: B023
        assert error(TAYLOR) <= limit(3, i) + 1e-13
    assert error(JORDAN) > 0.2
    assert limit(2, 5) < 0.1


def test_lemma_3_2_a_truncated_moment_has_a_smaller_error():
    """The leading r values have a smaller kappa, and so the error is smaller."""
    s = np.geomspace(1, 1e-3, 8)
    errors = []
    for r in (8, 6, 4, 2):
        x = matrix(s[:r], "wide")
        errors.append(np.linalg.norm(polar(x) - cubic(x, 5, largest)) / r**0.5)
        assert errors[-1] <= bound(s[:r], 5) / r**0.5
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 20 * errors[-1]
