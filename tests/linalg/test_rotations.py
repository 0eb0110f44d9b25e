import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, orthonormal, strict
from _reference import rotations

from optax_matrix import linalg
from optax_matrix.linalg.rotations import project_tangent, qr_retraction

KERNELS = {
    "householder": linalg.qr_householder,
    "cholesky": linalg.cholesky_qr,
}
EPS = float(np.finfo(np.float32).eps)


def f32(x):
    return np.float32(x)


def gram(n, seed=0):
    g = gaussian(n, 2 * n, seed=seed)
    return g @ g.T


@functools.lru_cache(None, typed=True)
def jitted(kernel, **options):
    return jax.jit(functools.partial(kernel, **options))


def run(kernel, *args, **options):
    with strict():
        return np.asarray(jitted(kernel, **options)(*map(f32, args)), np.float64)


@pytest.fixture(params=KERNELS)
def qr(request):
    return KERNELS[request.param]


# cross_gram


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1e30, 1e-30), (1e-30, 1e-30)], ids=str)
def test_cross_gram_is_a_positive_multiple_of_the_product(scales):
    x, y = gaussian(2, 6, 9), gaussian(2, 4, 9, seed=1)
    ours = run(linalg.cross_gram, scales[0] * x, scales[1] * y)
    product = x @ np.swapaxes(y, -1, -2)
    peaks = [np.abs(z).max(axis=(-2, -1), keepdims=True) for z in (x, y)]
    np.testing.assert_allclose(ours, product / peaks[0] / peaks[1], atol=20 * EPS)


def test_cross_gram_of_one_matrix_is_that_with_itself():
    x = f32(1e30 * gaussian(2, 4, 9))
    both = jax.jit(lambda x: (linalg.cross_gram(x), linalg.cross_gram(x, x)))
    np.testing.assert_array_equal(*both(x))


def test_cross_gram_of_zero_is_zero():
    assert not run(linalg.cross_gram, np.zeros((3, 4)), gaussian(3, 4)).any()


def test_cross_gram_is_at_least_float32():
    x = np.ones((2, 3), jnp.bfloat16)
    y = f32(np.ones((2, 3)))
    assert jax.eval_shape(linalg.cross_gram, x, y).dtype == jnp.float32


# power_step


def test_power_step_is_the_reference_s(qr):
    a, q = gram(8), orthonormal(8, 8)
    # The condition number of the Gram matrix is some 30.
    expected = rotations.qr(a @ q)
    np.testing.assert_allclose(
        run(linalg.power_step, a, q, qr=qr), expected, atol=100 * EPS
    )


@pytest.mark.parametrize("columns", [8, 3])
def test_power_steps_converge_to_the_eigenvectors_in_order(qr, columns):
    u = orthonormal(8, 8, seed=3)
    a = (u * 4.0 ** -np.arange(8)) @ u.T
    q = orthonormal(8, columns)
    for _ in range(30):
        q = run(linalg.power_step, a, q, qr=qr)
    # The least eigenvalue, 6e-5, is known to EPS / 6e-5 of itself.
    aligned = np.abs(q.T @ u[:, :columns])
    np.testing.assert_allclose(aligned, np.eye(columns), atol=EPS / 6e-5)


def test_power_step_leaves_eigenvectors_alone(qr):
    u = orthonormal(8, 8, seed=3)
    a = (u * np.geomspace(1, 1e-3, 8)) @ u.T
    np.testing.assert_allclose(run(linalg.power_step, a, u, qr=qr), u, atol=EPS / 1e-3)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_power_step_does_not_depend_on_the_scale(qr, scale):
    a, q = gram(8), orthonormal(8, 8)
    np.testing.assert_allclose(
        run(linalg.power_step, scale * a, q, qr=qr),
        rotations.qr(a @ q),
        atol=100 * EPS,
    )


def test_power_step_on_zero_keeps_the_basis_beside_others(qr):
    a = np.stack([np.zeros((6, 6)), gram(6)])
    q = np.stack([orthonormal(6, 6)] * 2).astype(np.float32)
    out = run(linalg.power_step, a, q, qr=qr)
    np.testing.assert_array_equal(out[0], q[0])
    np.testing.assert_allclose(out[1], rotations.qr(a[1] @ q[1]), atol=100 * EPS)


@pytest.mark.broad
def test_power_step_returns_the_dtype_of_the_basis():
    a, q = jnp.float32(gram(4)), jnp.eye(4, dtype=jnp.bfloat16)
    assert linalg.power_step(a, q).dtype == jnp.bfloat16
    q = jnp.float32(q)
    assert linalg.power_step(a.astype(jnp.bfloat16), q).dtype == jnp.float32


# the rotation group


@pytest.mark.parametrize("shape", [(7, 7), (7, 3), (2, 7, 3)])
def test_projection_is_tangent_idempotent_and_orthogonal(shape):
    r = np.broadcast_to(orthonormal(*shape[-2:]), shape)
    x = gaussian(*shape)
    t = run(project_tangent, r, x)
    s = np.swapaxes(r, -1, -2) @ t
    np.testing.assert_allclose(s, -np.swapaxes(s, -1, -2), atol=20 * EPS)
    np.testing.assert_allclose(run(project_tangent, r, t), t, atol=20 * EPS)
    np.testing.assert_allclose(np.sum(t * (x - t)), 0, atol=100 * EPS)


def test_projection_keeps_a_tangent():
    r, g = orthonormal(7, 7), gaussian(7, 7)
    t = r @ (g - g.T)
    np.testing.assert_allclose(run(project_tangent, r, t), t, atol=50 * EPS)


def test_projection_of_a_symmetric_direction_is_zero():
    r, s = orthonormal(7, 7), gram(7)
    ours = run(project_tangent, r, r @ s)
    np.testing.assert_allclose(ours, 0, atol=20 * EPS * np.linalg.norm(s))


def test_projection_returns_the_dtype_of_the_direction():
    x = np.ones((3, 3), jnp.bfloat16)
    assert jax.eval_shape(project_tangent, f32(np.eye(3)), x).dtype == jnp.bfloat16


@pytest.mark.broad
def test_retraction_agrees_with_the_step_to_first_order(qr):
    g = gaussian(6, 6)
    with jax.enable_x64(True):
        r = jnp.asarray(orthonormal(6, 6))
        t = r @ (g - g.T)
        errors = [
            np.linalg.norm(qr_retraction(r, h * t, qr=qr) - (r + h * t))
            for h in (1e-3, 1e-4)
        ]
    # Second order: a tenth of the step leaves a hundredth of the error.
    np.testing.assert_allclose(errors[0] / errors[1], 100, rtol=0.05)


def test_retraction_is_orthonormal_for_large_steps(qr):
    r = orthonormal(6, 6)
    g = gaussian(6, 6)
    t = 100 * r @ (g - g.T)
    q = run(qr_retraction, r, t, qr=qr)
    np.testing.assert_allclose(q.T @ q, np.eye(6), atol=20 * EPS)


def test_retraction_stays_where_the_step_is_zero_or_not_finite(qr):
    r = np.stack([orthonormal(5, 5)] * 2).astype(np.float32)
    t = np.zeros((2, 5, 5))
    t[1] = np.nan
    q = run(qr_retraction, r, t, qr=qr)
    np.testing.assert_allclose(q[0], r[0], atol=5 * EPS)
    np.testing.assert_array_equal(q[1], r[1])


@pytest.mark.broad
def test_a_policy_written_with_the_kernels_is_the_reference_s(qr):
    m = gaussian(6, 20)
    r = rotations.qr(gaussian(6, 6, seed=1))
    for policy in ("aro", "eigen", "rgd"):
        expected = rotations.rotation(m, r, rotations.sign, None, policy)
        if policy == "rgd":
            ours = jnp.float32(r)
            for _ in range(10):
                m32 = jnp.float32(m)
                x = linalg.cross_gram(m32, jnp.sign(ours.mT @ m32))
                x = x * jnp.sqrt(6.0) / jnp.linalg.norm(x)
                step = 0.1 * project_tangent(ours, x)
                ours = jitted(qr_retraction, qr=qr)(ours, step)
        else:
            rotated = jnp.float32(r.T @ m)
            d = jnp.sign(rotated) if policy == "aro" else rotated
            ours = jitted(qr)(linalg.cross_gram(jnp.float32(m), d), previous=f32(r))
        np.testing.assert_allclose(ours, expected, atol=200 * EPS, err_msg=policy)
