"""Blocks as optimal structures of the Fisher matrix (Structured Fisher, Section 3).

Each update is square-root natural gradient, Mat(F~^(-1/2) g), with the F~ of a
structure that is nearest to F = E[g g'] in the Frobenius norm. Here a generic minimizer
finds that F~, and the block, which has a closed form, must give the same update. g
stacks columns.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from _matrices import gaussian, orthonormal

import optax_matrix as om
from optax_matrix.linalg import eigenbasis, polar_svd, rank_one_scales
from optax_matrix.transforms.numerics import column_norms

M, N, DECAY = 2, 3, 0.7
STREAM = gaussian(4, M, N, seed=71) + 0.5
WEIGHTS = (1 - DECAY) * DECAY ** np.arange(len(STREAM))[::-1]

pytestmark = pytest.mark.usefixtures("x64")


def vectors(stream):
    return np.swapaxes(stream, -1, -2).reshape(len(stream), -1)


def fisher(stream, weights):
    g = vectors(stream)
    return np.einsum("t,ti,tj->ij", weights, g, g)


def nearest(structure, start, f):
    """Parameters whose ``structure(parameters)`` is nearest to ``f``."""
    loss = lambda x: jnp.sum((structure(x) - f) ** 2)
    found = scipy.optimize.minimize(
        jax.jit(jax.value_and_grad(loss)), start, jac=True, tol=1e-14
    )
    return found.x, found.fun


def natural(f, g):
    """Mat(F^(-1/2) g)."""
    w, u = np.linalg.eigh(f)
    return ((u * w**-0.5) @ u.T @ g.T.ravel()).reshape(N, M).T


def last_update(tx):
    update, state = jax.jit(tx.update), tx.init({"w": jnp.zeros((M, N))})
    for g in STREAM:
        updates, state = update({"w": jnp.asarray(g)}, state)
    return np.asarray(updates["w"])


def per_column(blocks):
    """A block-diagonal matrix of ``(n, m, m)``."""
    eye = jnp.eye(N)
    return jnp.einsum("ij,iab->iajb", eye, blocks).reshape(N * M, N * M)


def check(structure, start, update, f=None, g=STREAM[-1]):
    f = fisher(STREAM, WEIGHTS) if f is None else f
    best, _ = nearest(structure, start, f)
    # The minimizer stops where the loss is flat to 1e-14: parameters to 1e-6.
    np.testing.assert_allclose(update, natural(structure(best), g), rtol=1e-5)


def test_a_diagonal_is_adams_second_moment():
    """Proposition 1."""
    update = last_update(om.scale_by_second_moment(DECAY))
    check(jnp.diag, np.ones(M * N), update)


def test_scales_of_columns_are_normalisation():
    """Proposition 2, S (x) I."""
    root_mean_squares = lambda x: (None, column_norms(x) / M**0.5)
    update = last_update(om.equilibrate_with_ema(root_mean_squares, DECAY))
    check(lambda s: jnp.kron(jnp.diag(s), jnp.eye(M)), np.ones(N), update)


def test_one_block_for_all_columns_is_whitening():
    """Proposition 2, I (x) M: of one gradient its polar factor, of norm sqrt(n)."""
    g = STREAM[-1]

    def structure(x):
        a = x.reshape(M, M)
        return jnp.kron(jnp.eye(N), (a + a.T) / 2)

    update = np.sqrt(N) * np.asarray(polar_svd(jnp.asarray(g)))
    check(structure, np.eye(M).ravel(), update, fisher(g[None], [1.0]))


@pytest.mark.broad
def test_scales_of_rows_and_columns_are_racs():
    """Proposition 3, S (x) Q: the leading singular vectors of E[G^2]."""
    f = fisher(STREAM, WEIGHTS)
    squares = jnp.asarray(np.einsum("t,tij->ij", WEIGHTS, STREAM**2))
    row, col = rank_one_scales(jnp.sqrt(squares), rounds=30)

    def structure(x):
        return jnp.kron(jnp.diag(x[M:]), jnp.diag(x[:M]))

    g = STREAM[-1]
    check(structure, np.ones(M + N), g / np.outer(row, col), f)
    # Of one gradient it is what the block divides by.
    tx = om.equilibrate_with_ema(lambda x: rank_one_scales(x, rounds=30), 0.0)
    update = tx.update({"w": jnp.asarray(g)}, tx.init({"w": jnp.asarray(g)}))[0]["w"]
    check(structure, np.ones(M + N), update, fisher(g[None], [1.0]))


def test_diagonals_in_one_eigenbasis_are_eigen_adam():
    """Theorem 3.2: given U, D is the second moment of the rotated gradient."""
    tx = om.rotate(
        om.scale_by_second_moment(DECAY),
        policy="eigen_exact",
        side="out",
        statistics="gradient",
        decay=DECAY,
        update_interval=100,
    )
    u = eigenbasis(jnp.asarray(STREAM[0] @ STREAM[0].T))[1]

    def structure(x):
        d = x.reshape(N, 1, M)
        return per_column(jnp.einsum("ab,nkb,cb->nac", u, d, u))

    check(structure, np.ones(M * N), last_update(tx))


def test_the_eigenbasis_is_the_best_basis_of_one_diagonal():
    """Theorem 3.2's U: with D the same in every column, and so a block as whitening."""
    f = fisher(STREAM, WEIGHTS)
    gram = np.einsum("t,tij,tkj->ik", WEIGHTS, STREAM, STREAM)

    def loss(u):
        d = np.diag(u.T @ gram @ u) / N
        return np.sum((np.kron(np.eye(N), u * d @ u.T) - f) ** 2)

    best = loss(np.asarray(eigenbasis(jnp.asarray(gram))[1]))
    for angle in (-0.02, 0.02, 0.5):
        c, s = np.cos(angle), np.sin(angle)
        turned = np.asarray(eigenbasis(jnp.asarray(gram))[1]) @ [[c, -s], [s, c]]
        assert loss(turned) > best
    _, least = nearest(
        lambda x: jnp.kron(jnp.eye(N), (x.reshape(M, M) + x.reshape(M, M).T) / 2),
        np.eye(M).ravel(),
        f,
    )
    np.testing.assert_allclose(best, least, rtol=1e-9)


@pytest.mark.slow
def test_a_basis_of_lower_rank_leaves_what_proposition_4_says():
    """E[GG'] = U Q~ U' + U_c S U_c', S diagonal, where gradients share their basis."""
    u = orthonormal(5, 5)
    stream = [
        u @ np.diag(gaussian(5, seed=t)) @ orthonormal(7, 5, t).T for t in range(4)
    ]
    lead, rest = u[:, :2], u[:, 2:]
    tx = om.project_low_rank(
        optax.identity(),
        rank=2,
        basis=om.transforms.subspace_basis(0.5, switch="none", start="exact"),
    )
    # The basis, given; what is tracked in it is the library's.
    state = tx.init({"w": jnp.asarray(stream[0])})
    held = state.basis["w"]._replace(vectors=jnp.asarray(lead))
    state = state._replace(count=jnp.ones_like(state.count), basis={"w": held})
    for g in stream:
        _, state = tx.update({"w": jnp.asarray(g)}, state)
    gram = state.basis["w"].tracked
    core = gram.normalized * gram.peak**2
    whole = sum(0.5 ** (4 - t) * g @ g.T for t, g in enumerate(stream))
    left = rest.T @ (whole - lead @ core @ lead.T) @ rest
    np.testing.assert_allclose(left, np.diag(np.diag(left)), atol=1e-12)
    assert np.diag(left).min() > 0
    want = lead @ core @ lead.T + rest @ left @ rest.T
    np.testing.assert_allclose(whole, want, atol=1e-12)
