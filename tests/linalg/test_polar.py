import functools

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
    rank_one,
    shapes,
    strict,
)

from optax_matrix import linalg

KERNELS = {
    "svd": linalg.polar_svd,
    "eigh": linalg.polar_eigh,
    "qr": linalg.polar_qr,
    "products": linalg.polar_products,
}
EPS = float(np.finfo(np.float32).eps)
# A backward stable factor moves by eps / (least singular value); the Gaussians here
# have condition numbers up to about 100 (square), and the Gram matrix squares that.
FORWARD = 1000 * EPS


@functools.lru_cache(None, typed=True)
def jitted(name, **options):
    return jax.jit(functools.partial(KERNELS[name], **options))


def run(name, x, **options):
    with strict():
        return np.asarray(jitted(name, **options)(x))


@pytest.fixture(params=KERNELS)
def kernel(request):
    return functools.partial(run, request.param)


@pytest.mark.quick("wide", "one_column")
@pytest.mark.parametrize("shape", shapes())
def test_equals_the_float64_svd(kernel, shape):
    x = shapes()[shape]
    np.testing.assert_allclose(kernel(np.float32(x)), polar(x), atol=FORWARD)


def test_defining_equations(kernel):
    x = gaussian(8, 20)
    q = kernel(np.float32(x))
    np.testing.assert_allclose(q @ q.T, np.eye(8), atol=20 * EPS)
    h = q.T @ x
    np.testing.assert_allclose(h, h.T, atol=100 * EPS)
    assert np.linalg.eigvalsh((h + h.T) / 2).min() > -100 * EPS
    np.testing.assert_allclose(q @ h, x, atol=100 * EPS)


@pytest.mark.parametrize("name", ["svd", "qr", "products"])
@pytest.mark.parametrize("shape", [(16, 40), (40, 16)], ids=str)
@pytest.mark.parametrize("smallest", [1e-3, 1e-5])
def test_backward_stable_for_ill_conditioned_matrices(name, shape, smallest):
    x = near_singular(*shape, smallest=smallest)
    q = run(name, jnp.asarray(x, jnp.float32))
    q = (q if shape[0] <= shape[1] else q.T).astype(np.float64)
    x = x if shape[0] <= shape[1] else x.T
    np.testing.assert_allclose(q @ q.T, np.eye(16), atol=50 * EPS)
    h = x @ q.T
    np.testing.assert_allclose(h, h.T, atol=50 * EPS)
    assert np.linalg.eigvalsh((h + h.T) / 2).min() > -50 * EPS


@pytest.mark.parametrize("name", ["svd", "qr", "products"])
def test_condition_number_of_a_million_is_orthogonal_without_a_cut(name):
    x = near_singular(16, 40, smallest=1e-6)
    q = run(name, np.float32(x), rtol=0.0).astype(np.float64)
    np.testing.assert_allclose(q @ q.T, np.eye(16), atol=50 * EPS)


def test_eigh_cuts_what_the_gram_matrix_cannot_resolve():
    s = np.array([1.0, 0.1, 0.02, 1e-4, 1e-5])
    x = matrix_with_singular_values(s, 8, 20)
    q = run("eigh", np.float32(x))
    np.testing.assert_allclose(q, polar(x, rtol=1e-3), atol=FORWARD / 0.02)


@pytest.mark.parametrize("smallest", [0.15, 0.05])
def test_rtol_is_relative_to_the_largest_singular_value(kernel, smallest):
    # Fifteen ones: a Frobenius norm of 3.9, with which 0.15 would be cut, too.
    x = matrix_with_singular_values(np.append(np.ones(15), smallest), 16, 20)
    q = kernel(np.float32(x), rtol=0.1)
    np.testing.assert_allclose(q, polar(x, rtol=0.1), atol=FORWARD / smallest)


@pytest.mark.parametrize("shape", [(12, 12), (30, 12)], ids=str)
@pytest.mark.parametrize("rank", [1, 5, 11])
def test_rank_deficient_matrices_have_the_compact_factor(kernel, shape, rank):
    x = matrix_with_singular_values(np.linspace(1, 0.3, rank), *shape)
    q = kernel(np.float32(x))
    np.testing.assert_allclose(q, polar(x), atol=FORWARD)
    np.testing.assert_allclose(np.sum(q * q), rank, rtol=1e-4)


def test_zero_rows_and_columns_stay_zero(kernel):
    x = gaussian(6, 9)
    x[2] = x[:, 4] = 0
    q = kernel(np.float32(x))
    np.testing.assert_allclose(q[2], 0, atol=20 * EPS)
    np.testing.assert_allclose(q[:, 4], 0, atol=20 * EPS)


def test_zero_is_zero_beside_others(kernel):
    x = np.stack([np.zeros((8, 20)), rank_one(8, 20), gaussian(8, 20)])
    q = kernel(np.float32(x))
    np.testing.assert_array_equal(q[0], 0)
    np.testing.assert_allclose(q[1:], polar(x[1:]), atol=FORWARD)


@pytest.mark.parametrize("scale", [1e-20, 7.0, 1e20])
def test_scale_invariance(kernel, scale):
    x = gaussian(8, 20)
    q = kernel(jnp.asarray(scale * x, jnp.float32))
    np.testing.assert_allclose(q, polar(x), atol=FORWARD)


def test_rotation_equivariance(kernel):
    x, p, q = gaussian(8, 20), orthonormal(8, 8, 5), orthonormal(20, 20, 6)
    turned = kernel(jnp.asarray(p @ x @ q, jnp.float32))
    straight = kernel(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(turned, p @ straight @ q, atol=FORWARD)


def test_transpose_symmetry(kernel):
    x = np.float32(gaussian(8, 20))
    np.testing.assert_allclose(kernel(x.mT), kernel(x).T, atol=FORWARD)


@pytest.mark.quick("eigh")
def test_batched_equals_loop_and_vmap(kernel):
    x = np.float32(shapes()["batched"])[0]
    batched = kernel(x)
    np.testing.assert_allclose(batched, np.stack([kernel(y) for y in x]), atol=20 * EPS)
    np.testing.assert_allclose(
        jax.vmap(jitted(kernel.args[0]))(x), batched, atol=20 * EPS
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16])
def test_narrow_dtypes_are_kept_and_computed_in_float32(kernel, dtype):
    x = np.asarray(gaussian(8, 20), dtype)
    q = kernel(x)
    assert q.dtype == dtype
    np.testing.assert_allclose(
        q.astype(np.float64), polar(x), atol=float(jnp.finfo(dtype).eps)
    )


@pytest.mark.broad
def test_float64_keeps_its_precision(kernel):
    x = gaussian(8, 20)
    with jax.enable_x64(True):
        q = kernel(jnp.asarray(x))
    assert q.dtype == np.float64
    np.testing.assert_allclose(q, polar(x), atol=1e-12)


def test_a_matrix_that_is_orthogonal_is_left_alone(kernel):
    q = orthonormal(20, 8).T
    np.testing.assert_allclose(kernel(np.float32(q)), q, atol=20 * EPS)


@pytest.mark.daily("eigh", "products", "qr")
@pytest.mark.broad
def test_runs_under_shard_map(kernel, cpus):
    mesh = jax.sharding.Mesh(np.array(cpus[:2]), ("d",))
    x = jnp.asarray(gaussian(4, 6, 9), jnp.float32)
    f = jax.shard_map(
        jitted(kernel.args[0]),
        mesh=mesh,
        in_specs=jax.P("d"),
        out_specs=jax.P("d"),
        check_vma=False,
    )
    np.testing.assert_allclose(jax.jit(f)(x), kernel(x), atol=20 * EPS)
