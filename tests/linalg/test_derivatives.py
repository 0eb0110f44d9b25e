"""Derivatives of kernels with loops and decompositions, against finite differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values

from optax_matrix import linalg
from optax_matrix.linalg.scale import matrix_norm, safe_divide, safe_root, unit_peak
from optax_matrix.transforms import row_rms
from optax_matrix.transforms.rotation._joint_equilibration import (
    equilibrate_rows_jointly,
    sinkhorn_jointly,
)

pytestmark = pytest.mark.usefixtures("x64")

ROOT = partial(linalg.inverse_root, p=4, eps=1e-3)
POLAR = {
    "polar_svd": linalg.polar_svd,
    "polar_eigh": linalg.polar_eigh,
    "polar_qr": linalg.polar_qr,
    "polar_products": linalg.polar_products,
}
QR = {
    "cholesky_qr": linalg.cholesky_qr,
    "qr_householder": linalg.qr_householder,
}


def gram(f):
    return lambda x: f(x @ x.mT)


def steps(x):
    """Subspace iteration, as many times as a traced array says."""
    start, number = np.eye(x.shape[-2])[:, :2], np.asarray([1, 3])
    core = jnp.diag(np.asarray([2.0, 1.0]))
    basis = jnp.stack([start, start + 0.1])
    return linalg.subspace_iteration(
        basis, jnp.stack([core, core]), jnp.stack([x, 2 * x]), iterations=number, most=4
    )


KERNELS = {
    **POLAR,
    **QR,
    "left_vectors": lambda x: linalg.left_vectors(x, 2),
    "randomized": lambda x: linalg.randomized_left_vectors(x, 2, jax.random.key(0)),
    "subspace_iteration": steps,
    "eigenbasis": gram(linalg.eigenbasis),
    "inverse_root-eigh": gram(partial(ROOT, method="eigh")),
    "inverse_root-newton": gram(partial(ROOT, method="newton")),
    "newton_schulz": linalg.newton_schulz,
    "sinkhorn": linalg.sinkhorn,
    "standardize_rows": linalg.standardize_rows,
}


def weighted(f):
    """A number that depends on every entry of the result."""

    def number(*args):
        parts = [x.ravel() for x in jax.tree.leaves(f(*args))]
        flat = jnp.concatenate(parts)
        return jnp.sum(jnp.sin(flat) * (1 + jnp.arange(flat.size) % 7))

    return number


def slopes(f, x, step=1e-6):
    """The derivative along one direction: by reverse mode, and by differences."""
    direction = gaussian(*np.shape(x), seed=9)
    number = jax.jit(weighted(f))
    got = np.vdot(jax.jit(jax.grad(weighted(f)))(x), direction)
    ahead, behind = number(x + step * direction), number(x - step * direction)
    return got, (ahead - behind) / (2 * step)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_reverse_mode_agrees_with_differences(name):
    shapes = [(4, 4), (6, 4)] if name in QR else [(4, 6), (6, 4)]
    if name.startswith(("eigen", "inverse")):
        shapes = [(4, 4)]
    for shape in shapes:
        x = jnp.asarray(gaussian(*shape, seed=3))
        np.testing.assert_allclose(*slopes(KERNELS[name], x), rtol=2e-7)


@pytest.mark.broad
def test_the_derivative_of_a_polar_factor_agrees_with_numpy():
    def polar(x):
        u, _, vt = np.linalg.svd(x, full_matrices=False)
        return u @ vt

    x, dx = gaussian(4, 6, seed=3), 1e-5 * gaussian(4, 6, seed=9)
    along = jax.jit(lambda x, dx: jax.jvp(linalg.polar_svd, (x,), (dx,))[1])
    np.testing.assert_allclose(
        2 * along(x, dx), polar(x + dx) - polar(x - dx), atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", QR)
def test_q_factor_of_a_stack_of_any_scale(name):
    x = jnp.stack([gaussian(5, 3, seed=1), gaussian(5, 3, seed=2)])
    ours = jax.grad(weighted(QR[name]))
    # JAX's own rule for its QR, brought to a positive diagonal.
    q = lambda x: jnp.linalg.qr(x)[0]
    signs = jnp.sign(jnp.diagonal(jnp.linalg.qr(x)[1], axis1=-2, axis2=-1))
    want = jax.grad(weighted(lambda x: q(x) * signs[:, None, :]))(x)
    np.testing.assert_allclose(ours(x), want, atol=1e-12)
    np.testing.assert_allclose(1e20 * ours(1e20 * x), want, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", QR)
def test_q_factor_of_singular_matrices(name):
    """The column that depends on the others is a constant: no infinite derivative."""
    x = gaussian(5, 3, seed=1)
    x[:, 2] = x[:, 0] - x[:, 1]
    grad = jax.grad(weighted(QR[name]))(jnp.asarray(x))
    assert np.isfinite(grad).all()
    assert not grad[:, 2].any()
    # The span of the other columns moves as without it.
    projector = lambda x: QR[name](x)[:, :2] @ QR[name](x)[:, :2].T
    moved = jnp.zeros((5, 3)).at[:, 0].set(gaussian(5, seed=4))
    _, got = jax.jvp(projector, (jnp.asarray(x),), (moved,))
    _, want = jax.jvp(projector, (jnp.asarray(x)[:, :2],), (moved[:, :2],))
    np.testing.assert_allclose(got, want, atol=1e-12)
    previous = jnp.asarray(np.linalg.qr(gaussian(5, 3))[0])
    f = lambda previous: jnp.sum(QR[name](jnp.zeros((5, 3)), previous=previous) ** 3)
    np.testing.assert_allclose(jax.grad(f)(previous), 3 * previous**2)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLAR)
def test_polar_factor_of_matrices_that_stay_singular(name):
    """Along matrices of rank two the compact factor is smooth."""
    left, right = gaussian(4, 2, seed=1), gaussian(2, 6, seed=2)
    f = lambda left: POLAR[name](left @ right)
    np.testing.assert_allclose(*slopes(f, jnp.asarray(left)), rtol=1e-6)
    zero = jax.grad(weighted(POLAR[name]))(jnp.zeros((4, 6)))
    assert not zero.any()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eigh", "newton"])
def test_inverse_root_of_a_singular_matrix_with_equal_eigenvalues(method):
    x = jnp.asarray(matrix_with_singular_values([3.0, 2.0, 2.0], 4, 6))
    root = gram(partial(ROOT, method=method))
    np.testing.assert_allclose(*slopes(root, x), rtol=1e-4)
    assert np.isfinite(jax.grad(weighted(root))(jnp.zeros((4, 6)))).all()


@pytest.mark.broad
def test_eigenvectors_of_equal_eigenvalues():
    """What does not depend on the choice of these vectors has its derivative."""
    x = jnp.diag(jnp.array([3.0, 3.0, 1.0, 0.0, 0.0]))

    def leading(x):
        q = linalg.eigenbasis(x + x.mT)[1][:, :2]
        return q @ q.mT

    def singular(x):
        u = linalg.left_vectors(x, 2)
        return u @ u.mT

    np.testing.assert_allclose(*slopes(leading, x), rtol=1e-6)
    np.testing.assert_allclose(*slopes(singular, x), rtol=1e-6)


@pytest.mark.broad
def test_divisors_that_cancel_have_no_derivative():
    x = jnp.asarray(gaussian(3, 4))
    norm = lambda x: jnp.sqrt(jnp.sum(unit_peak(x)[0] ** 2)) * unit_peak(x)[1][0, 0]
    np.testing.assert_allclose(jax.grad(norm)(x), x / jnp.linalg.norm(x))
    assert float(jax.grad(safe_root)(0.0)) == 0.0
    assert float(jax.grad(safe_root)(4.0)) == 0.25


def jointly(tx, x):
    """A base for shared rotations, up to its scale; each matrix is a set by itself."""
    x = x.reshape(-1, *x.shape[-2:])
    options = {"sum_rows": lambda rows: rows, "peak": {"w": jnp.ones(len(x))}}
    out = tx.update({"w": x}, tx.init({"w": x}), **options)[0]["w"]
    return safe_divide(out, matrix_norm(out))


EQUILIBRATIONS = {
    "sinkhorn": linalg.sinkhorn,
    "sinkhorn-alternating": partial(linalg.sinkhorn, scheme="alternating"),
    "sinkhorn-ruiz": partial(linalg.sinkhorn, scheme="ruiz"),
    "rows_and_columns": linalg.scale_rows_and_columns,
    "rank_one_scales": lambda x: jnp.concatenate(linalg.rank_one_scales(x), -1),
    "newton_schulz": linalg.newton_schulz,
    "row_rms": lambda x: row_rms(x)[0],
    "rows_jointly": lambda x: jointly(equilibrate_rows_jointly(), x),
    "sinkhorn_jointly": lambda x: jointly(sinkhorn_jointly(), x),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUILIBRATIONS)
def test_zero_rows_and_zero_matrices_have_finite_derivatives(name):
    f = EQUILIBRATIONS[name]
    x = jnp.asarray(gaussian(2, 4, 6, seed=3)).at[0, 1].set(0.0).at[1].set(0.0)
    assert np.isfinite(jax.grad(weighted(f))(x)).all()
    # The rows beside the zero one have their derivative.
    row = lambda part: f(jnp.zeros((4, 6)).at[jnp.array([0, 2, 3])].set(part))
    np.testing.assert_allclose(
        *slopes(row, x[0, jnp.array([0, 2, 3])]), rtol=1e-6, atol=1e-8
    )


@pytest.mark.slow
def test_a_second_derivative():
    f = lambda t: jnp.sum(linalg.cholesky_qr(jnp.array([[1.0, t], [t, 2.0]])) ** 3)
    got, h = jax.grad(jax.grad(f))(0.3), 1e-4
    want = (f(0.3 + h) - 2 * f(0.3) + f(0.3 - h)) / h**2
    np.testing.assert_allclose(got, want, rtol=1e-5)
