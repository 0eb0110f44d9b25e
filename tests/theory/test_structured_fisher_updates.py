"""Structured Fisher: updates of structures, and the library's blocks that make them.

For each structure of test_structured_fisher.py, Mat(F~^(-1/2) g) is the stated update
(Sections 3 to 5, B, C and E.6), and the library makes that update. S (x) M (Theorem
D.1) and the blocks of Proposition 6 have no block in the library. Proposition 4 is at
the end.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _fisher import (
    BLOCKS,
    COLS,
    DECAY,
    F_C,
    KEPT,
    RANK,
    ROWS,
    SCALES_C,
    SQUARES,
    STREAM,
    U_L,
    U_R,
    G,
    M,
    N,
    U,
    block_diagonal,
    definite,
    descending,
    fixed_point,
    in_basis,
    kron,
    mean,
    natural,
    power,
    rotated,
    shampoo,
    vec,
)
from _matrices import gaussian, orthonormal

import optax_matrix as om
from optax_matrix.linalg import polar_svd, standardize_rows

pytestmark = pytest.mark.usefixtures("x64")

# Updates: Sections 3 to 5, C and E.6.

SCALES, FULL = fixed_point(SQUARES.T), fixed_point(BLOCKS)
STATED = {
    "Adam": (np.diag(vec(SQUARES)), G / SQUARES**0.5),
    "blocks": (
        block_diagonal(BLOCKS),
        np.stack([power(b, -0.5) @ g for b, g in zip(BLOCKS, G.T, strict=True)], 1),
    ),
    "whitening": (
        np.kron(np.eye(N), ROWS / N),
        N**0.5 * power(ROWS, -0.5) @ G,
    ),
    "whitening of columns": (
        np.kron(COLS / M, np.eye(M)),
        M**0.5 * G @ power(COLS, -0.5),
    ),
    "normalization": (
        np.kron(np.diag(SQUARES.sum(0)) / M, np.eye(M)),
        M**0.5 * G / SQUARES.sum(0) ** 0.5,
    ),
    "normalization of rows": (
        np.kron(np.eye(N), np.diag(SQUARES.sum(1)) / N),
        N**0.5 * G / SQUARES.sum(1)[:, None] ** 0.5,
    ),
    "Shampoo": (
        shampoo(ROWS / N, COLS / M),
        (M * N) ** 0.25 * power(ROWS, -0.25) @ G @ power(COLS, -0.25),
    ),
    "Eigen-Adam": (
        in_basis(*rotated(U_L)),
        U_L @ (U_L.T @ G / mean((U_L.T @ STREAM) ** 2) ** 0.5),
    ),
    "SOAP": (
        in_basis(*rotated(U_L, U_R)),
        U_L @ (U_L.T @ G @ U_R / mean((U_L.T @ STREAM @ U_R) ** 2) ** 0.5) @ U_R.T,
    ),
    "RACS": (kron(*SCALES), G / np.sqrt(np.outer(*SCALES[::-1]))),
    "S (x) M": (kron(*FULL), power(FULL[1], -0.5) @ G / FULL[0] ** 0.5),
    "compensation": (
        np.kron(np.diag(SCALES_C), KEPT),
        (G - U @ U.T @ G) / SCALES_C**0.5,
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_the_stated_update_is_the_square_root_natural_gradient(name):
    """Also where C.2 prints a factor sqrt(n), and C.3 no inverse, on the way to it."""
    matrix, update = STATED[name]
    np.testing.assert_allclose(natural(matrix), update, atol=1e-10)


def test_normalization_is_printed_with_its_factor_twice():
    """Section 3.3 has sqrt(m) G S*^(-1/2), but S* of Eq. 8 holds the 1 / m already."""
    scales = SQUARES.sum(0) / M
    update = STATED["normalization"][1]
    np.testing.assert_allclose(G / scales**0.5, update)
    assert np.abs(M**0.5 * G / scales**0.5 - update).max() > 0.5


def test_eq_19_the_part_that_a_lower_rank_leaves_out():
    """Eigen-Adam's update is that in U and the natural gradient of F_c."""
    inside = U @ (U.T @ G / mean((U.T @ STREAM) ** 2) ** 0.5)
    np.testing.assert_allclose(
        inside + natural(F_C), STATED["Eigen-Adam"][1], atol=1e-10
    )


def test_eqs_23_to_25_products_and_blocks():
    a, b, c = definite(N, 1), definite(M, 2), gaussian(M, N)
    half = lambda x: power(x, -0.5)
    np.testing.assert_allclose(half(np.kron(a, b)), np.kron(half(a), half(b)))
    np.testing.assert_allclose(np.kron(a, b) @ vec(c), vec(b @ c @ a.T))
    roots = np.stack([half(x) for x in BLOCKS])
    np.testing.assert_allclose(
        half(block_diagonal(BLOCKS)), block_diagonal(roots), atol=1e-10
    )


# The library.


def run(tx, stream=STREAM):
    """The last of the updates that a transformation makes of a stream."""
    update, state = jax.jit(tx.update), tx.init({"w": jnp.zeros_like(stream[0])})
    for g in stream:
        updates, state = update({"w": jnp.asarray(g)}, state)
    return np.asarray(updates["w"])


def over_root_mean_square(axis):
    def scales(x):
        rms = jnp.sqrt(jnp.mean(x**2, axis))
        return (None, rms) if axis == -2 else (rms, None)

    return om.equilibrate_with_ema(scales, DECAY)


ROOT = {"decay": DECAY, "eps": 0.0, "method": "eigh"}
BLOCK = {  # By the structure's name: the library's chain, and a constant it leaves out.
    "Adam": (lambda: om.scale_by_second_moment(DECAY), 1),
    "whitening": (lambda: om.precondition(power=0.5, side="out", **ROOT), N**0.5),
    "whitening of columns": (
        lambda: om.precondition(power=0.5, side="in", **ROOT),
        M**0.5,
    ),
    "normalization": (lambda: over_root_mean_square(-2), 1),
    "normalization of rows": (lambda: over_root_mean_square(-1), 1),
    "Shampoo": (
        lambda: om.scale_by_shampoo(b2=DECAY, eps=0.0, method="eigh"),
        (M * N) ** 0.25,
    ),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", BLOCK)
def test_the_library_makes_that_update_of_a_stream(name):
    tx, constant = BLOCK[name]
    np.testing.assert_allclose(constant * run(tx()), STATED[name][1], rtol=1e-6)


def test_whitening_of_one_gradient_is_its_polar_factor():
    """Section 3.3: as in Muon and SWAN, less the factor sqrt(n)."""
    one = natural(np.kron(np.eye(N), G @ G.T / N))
    np.testing.assert_allclose(
        one, N**0.5 * np.asarray(polar_svd(jnp.asarray(G))), rtol=1e-9
    )


@pytest.mark.broad
def test_normalization_of_one_gradient_is_swans_first_step():
    """Eq. 30 of rows with mean zero, which is I (x) Q of one gradient, 1 / n included.

    The paper says "normalization up to sqrt(n)", of columns; Eq. 30 scales rows.
    """
    g = G - G.mean(1, keepdims=True)
    one = natural(np.kron(np.eye(N), np.diag(np.mean(g**2, 1))), g)
    np.testing.assert_allclose(one, standardize_rows(jnp.asarray(g), 0.0), rtol=1e-9)
    np.testing.assert_allclose(one, standardize_rows(jnp.asarray(G), 0.0), rtol=1e-9)
    swan = om.scale_by_swan(eps=0.0, polar=polar_svd, scaling="none")
    both = natural(np.kron(np.eye(M), one.T @ one / M), one.T).T
    whole = M**0.5 * np.asarray(run(swan, G.T[None])).T  # Leaves are (in, out).
    np.testing.assert_allclose(whole, both, rtol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(M, N), (N, M)])
def test_racs_of_one_gradient_is_proposition_3(shape):
    g = gaussian(*shape, seed=9) + 0.5
    f = np.kron(*map(np.diag, reversed(fixed_point_of(g**2))))
    paper = {"max_rms": None, "max_shrink": None, "limiter": 1e9}
    racs = om.scale_by_racs(b1=0.0, scale=1.0, rounds=20, **paper)
    np.testing.assert_allclose(run(racs, g[None]), natural(f, g), rtol=1e-6)


def fixed_point_of(squares):
    """q and s of the SVD."""
    u, s, vt = np.linalg.svd(squares)
    return np.abs(s[0] * u[:, 0]), np.abs(vt[0])


@pytest.mark.broad
@pytest.mark.parametrize("sides", ["out", "both"])
def test_given_bases_rotate_is_eigen_adam_and_soap(sides):
    """Theorems 3.2 and 3.3, step ii, in the bases of the first gradient."""
    first = STREAM[0]
    tx = om.in_eigenbasis(
        om.scale_by_second_moment(DECAY),
        policy="eigen_exact",
        side=sides,
        decay=DECAY,
        update_interval=100,
    )
    left = descending(first @ first.T)
    right = descending(first.T @ first) if sides == "both" else None
    want = natural(in_basis(*rotated(left, right)))
    np.testing.assert_allclose(run(tx), want, rtol=1e-5)


@pytest.mark.broad
def test_eigen_adam_in_the_true_eigenbasis_is_theorem_3_2():
    """All gradients have the same left singular vectors, so that every Q_t has them."""
    u = orthonormal(M, M)
    sizes = np.array([5.0, 2.0, 0.5]) * (1 + 0.3 * np.abs(gaussian(8, M, seed=4)))
    stream = np.stack(
        [u * s @ orthonormal(N, M, seed=t).T for t, s in enumerate(sizes)]
    )
    tx = om.scale_by_eigen_adam(
        b1=0.0, b2=DECAY, b3=DECAY, policy="eigen_exact", update_interval=1
    )
    second = mean((u.T @ stream) ** 2)
    f = in_basis(np.kron(np.eye(N), u), vec(second))
    gram = mean(stream @ np.swapaxes(stream, 1, 2))
    np.testing.assert_allclose(np.abs(descending(gram).T @ u), np.eye(M), atol=1e-9)
    np.testing.assert_allclose(run(tx, stream), natural(f, stream[-1]), rtol=1e-5)


@pytest.mark.broad
def test_compensate_is_theorem_5_1():
    """Algorithm 3 without its limiter, in a given basis."""
    tx = om.compensate(decay=DECAY, limiter=1e9, max_shrink=None)
    state = tx.init({"w": jnp.zeros((M, N))})
    update, zeros = jax.jit(tx.update), {"w": jnp.zeros((RANK, N))}
    for g in STREAM:
        extra = {"gradient": g, "projected": U.T @ g, "basis": U}
        tree = {name: {"w": jnp.asarray(x)} for name, x in extra.items()}
        out, state = update(zeros, state, **tree)
    np.testing.assert_allclose(out["w"], natural(np.kron(np.diag(SCALES_C), KEPT)))


# Proposition 4.


def with_basis(u):
    """Gradients with the left singular vectors of a basis."""
    return np.stack(
        [u @ np.diag(gaussian(5, seed=t)) @ orthonormal(7, 5, t).T for t in range(4)]
    )


def test_proposition_4_what_a_basis_of_lower_rank_leaves_out():
    """Eq. 18: the sum is that of U sigma sigma' U', and U_c S U_c' with S diagonal.

    S is a sum over the steps, though it is printed with one step's index. Without it,
    eigenvectors of the sum stay within U, however large S is.
    """
    basis = orthonormal(5, 5)
    u, rest = basis[:, :2], basis[:, 2:]
    stream = with_basis(basis)
    whole = np.sum(stream @ np.swapaxes(stream, 1, 2), 0)
    seen = u.T @ stream
    inside = u @ np.sum(seen @ np.swapaxes(seen, 1, 2), 0) @ u.T
    outside = rest.T @ whole @ rest
    assert np.diag(outside).min() > 0
    np.testing.assert_allclose(outside, np.diag(np.diag(outside)), atol=1e-12)
    np.testing.assert_allclose(whole, inside + rest @ outside @ rest.T, atol=1e-12)
    assert outside.max() > np.linalg.eigvalsh(inside)[-2]
    np.testing.assert_allclose(rest.T @ descending(inside)[:, :2], 0, atol=1e-9)
    assert np.abs(rest.T @ descending(whole)[:, :2]).max() > 0.99


@pytest.mark.slow
def test_proposition_4_of_the_librarys_tracked_matrix():
    basis = orthonormal(5, 5)
    lead, rest = basis[:, :2], basis[:, 2:]
    stream = with_basis(basis)
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
