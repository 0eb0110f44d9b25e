import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import (
    gaussian,
    matrix_with_singular_values,
    near_singular,
    ones,
    orthonormal,
    rank_one,
    strict,
)
from _reference.rotations import qr

from optax_matrix import linalg
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg import _cholesky_passes
from optax_matrix.linalg._cholesky_passes import fixed_passes


def cholesky_qr_on_cuda(x, **options):
    with mock.patch.object(_cholesky_passes, "_adaptive_passes", fixed_passes):
        return linalg.cholesky_qr(x, **options)


def cholesky_qr_in_panels(x, **options):
    with mock.patch.object(Thresholds, "panel_columns", 3):
        return cholesky_qr_on_cuda(x, **options)


KERNELS = {
    "householder": linalg.qr_householder,
    "cholesky": linalg.cholesky_qr,
    "cholesky on CUDA": cholesky_qr_on_cuda,
    "cholesky in panels": cholesky_qr_in_panels,
}
EPS = float(np.finfo(np.float32).eps)
# An entry of QᵀQ is a sum of up to 40 rounded products, and Q itself is rounded.
ORTHONORMAL = 20 * EPS


@functools.lru_cache(None, typed=True)
def jitted(name, **options):
    return jax.jit(functools.partial(KERNELS[name], **options))


def run(name, x, previous=None, **options):
    x = np.float32(x)
    previous = None if previous is None else np.float32(previous)
    with strict():
        return np.asarray(jitted(name, **options)(x, previous=previous), np.float64)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return functools.partial(run, request.param)


def assert_orthonormal(q, atol=ORTHONORMAL):
    eye = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *[q.shape[-1]] * 2))
    np.testing.assert_allclose(np.swapaxes(q, -1, -2) @ q, eye, atol=atol)


def singular():
    """Matrices without full column rank, by what is wrong with them."""
    twins = gaussian(12, 12, seed=1)
    twins[:, 7] = twins[:, 2]
    flat = gaussian(12, 12, seed=2)
    flat[6:] = 0
    dead = gaussian(12, 12, seed=3)
    dead[:, 3] = dead[3] = 0
    one_row, one_entry = np.zeros((12, 12)), np.zeros((12, 12))
    one_row[1] = one_entry[1, 0] = 1
    return {
        "rank half": gaussian(12, 6, seed=4) @ gaussian(6, 12, seed=5),
        "rank one": rank_one(12, 12),
        "all equal": np.ones((12, 12)),
        "two equal columns": twins,
        "zero rows": flat,
        "dead neuron": dead,
        "one row": one_row,
        "one entry": one_entry,
        "tall": matrix_with_singular_values([1, 0.5], 30, 12),
    }


@pytest.mark.quick("shape1", "shape2")
@pytest.mark.parametrize("shape", [(12, 12), (12, 8), (1, 1), (2, 3, 8, 5)])
def test_equals_the_float64_factor(kernel, shape):
    x = gaussian(*shape)
    # The condition numbers of these Gaussians are at most 30.
    np.testing.assert_allclose(kernel(x), qr(x), atol=30 * EPS)


def test_defining_equations(kernel):
    x = gaussian(12, 8)
    q = kernel(x)
    assert_orthonormal(q)
    r = q.T @ x
    np.testing.assert_allclose(np.tril(r, -1), 0, atol=20 * EPS)
    assert np.diagonal(r).min() > 0
    np.testing.assert_allclose(q @ r, x, atol=20 * EPS)


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-6, 1e-8])
def test_orthonormal_whatever_the_condition_number(kernel, smallest):
    x = near_singular(40, 40, smallest=smallest)
    q = kernel(x)
    assert_orthonormal(q)
    # Backward stable: what is below the diagonal of R is rounding, of the whole.
    np.testing.assert_allclose(np.tril(q.T @ x, -1), 0, atol=10 * EPS)


def test_columns_of_very_different_size_are_resolved(kernel):
    # A power step from the eigenvectors themselves: nothing is lost to the shift.
    q = orthonormal(12, 12)
    x = q * np.geomspace(1, 1e-12, 12)
    np.testing.assert_allclose(kernel(x), q, atol=ORTHONORMAL)


@pytest.mark.parametrize("kind", singular())
def test_orthonormal_for_singular_matrices(kernel, kind):
    x = singular()[kind]
    q = kernel(x)
    assert_orthonormal(q)
    outside = x - q @ (q.T @ x)
    np.testing.assert_allclose(outside, 0, atol=50 * EPS * np.linalg.norm(x))


def test_a_zero_column_becomes_the_previous_one():
    x = singular()["dead neuron"]
    previous = orthonormal(12, 12, seed=9)
    previous[3] = previous[:, 3] = 0
    previous[3, 3] = -1
    q = run("cholesky", x, previous)
    assert_orthonormal(q)
    np.testing.assert_allclose(q[:, 3], previous[:, 3], atol=EPS)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(6, 6), (9, 4)])
def test_zero_gives_the_previous_or_the_identity_beside_others(kernel, shape):
    x = np.stack([np.zeros(shape), gaussian(*shape)])
    previous = np.stack([orthonormal(*shape, seed=3), orthonormal(*shape, seed=4)])
    previous = previous.astype(np.float32)
    q = kernel(x, previous)
    np.testing.assert_array_equal(q[0], previous[0])
    np.testing.assert_allclose(q[1], qr(x[1]), atol=30 * EPS)
    np.testing.assert_array_equal(kernel(x)[0], np.eye(*shape))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_gives_the_previous_or_nan_beside_others(kernel, value):
    x = gaussian(2, 6, 6)
    x[0, 2, 3] = value
    previous = np.stack([orthonormal(6, 6, seed=3)] * 2).astype(np.float32)
    for q in (kernel(x, previous), kernel(x)):
        np.testing.assert_allclose(q[1], qr(x[1]), atol=30 * EPS)
    np.testing.assert_array_equal(kernel(x, previous)[0], previous[0])
    assert np.isnan(kernel(x)[0]).all()


@pytest.mark.parametrize("scale", [1e-20, 7.0, 1e20])
def test_scale_invariance(kernel, scale):
    x = gaussian(12, 8)
    np.testing.assert_allclose(kernel(scale * x), qr(x), atol=30 * EPS)


def test_left_equivariance(kernel):
    x, p = gaussian(12, 8), orthonormal(12, 12, seed=5)
    np.testing.assert_allclose(kernel(p @ x), p @ kernel(x), atol=30 * EPS)


def test_the_sign_of_a_column_is_that_of_the_result(kernel):
    x, signs = gaussian(12, 8), np.where(np.arange(8) % 3, 1.0, -1.0)
    np.testing.assert_allclose(kernel(x * signs), kernel(x) * signs, atol=30 * EPS)


def test_orthonormal_columns_are_left_alone(kernel):
    q = orthonormal(12, 8)
    np.testing.assert_allclose(kernel(q), q, atol=5 * EPS)


@pytest.mark.quick("cholesky")
def test_each_matrix_of_a_batch_is_decided_alone(kernel):
    # One needs two passes, one four, one is zero, and one draws new columns.
    hard = near_singular(12, 12, smallest=1e-7)
    x = np.stack([gaussian(12, 12), hard, np.zeros((12, 12)), np.ones((12, 12))])
    batched = kernel(x)
    # The neighbours change, the program does not: so the bits are those of before. A
    # matrix on its own is another program, whose products a CPU may round otherwise.
    for i in range(4):
        alone = np.where(np.arange(4)[:, None, None] == i, x, 0)
        np.testing.assert_array_equal(kernel(alone)[i], batched[i])
    mapped = np.asarray(jax.vmap(jitted(kernel.args[0]))(np.float32(x)))
    assert_orthonormal(mapped)
    np.testing.assert_allclose(mapped[0], batched[0], atol=30 * EPS)
    np.testing.assert_array_equal(mapped[2], batched[2])


@pytest.mark.parametrize("dtype", [jnp.bfloat16])
def test_narrow_dtypes_are_kept_and_computed_in_float32(kernel, dtype):
    x = np.asarray(gaussian(12, 8), dtype)
    q = jitted(kernel.args[0])(x)
    assert q.dtype == dtype
    expected = qr(np.asarray(x, np.float64))
    np.testing.assert_allclose(
        np.asarray(q, np.float64), expected, atol=float(jnp.finfo(dtype).eps)
    )


@pytest.mark.quick("1e-09-cholesky")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("smallest", [1e-1, 1e-9])
@pytest.mark.usefixtures("x64")
def test_float64_keeps_its_precision(name, smallest):
    q = jitted(name)(near_singular(8, 8, smallest=smallest))
    assert q.dtype == np.float64
    assert_orthonormal(np.asarray(q), atol=1e-14)


def test_one_pass_is_the_paper_s():
    x = near_singular(20, 8, smallest=1e-2)
    shift = 1e-5
    unit = x / np.linalg.norm(x, axis=0)
    l = np.linalg.cholesky(unit.T @ unit + shift * np.eye(8))
    expected = unit @ np.linalg.inv(l).T
    expected /= np.linalg.norm(expected, axis=0)
    q = run("cholesky", x, passes=1, shift=shift)
    # The Gram matrix has a condition number of some 1e3.
    np.testing.assert_allclose(q, expected, atol=1000 * EPS)
    assert np.abs(q.T @ q - np.eye(8)).max() > 1e-4


@pytest.mark.broad
def test_a_number_of_passes_is_kept_to():
    x = near_singular(16, 16, smallest=1e-4)
    errors = []
    for passes in (1, 2, 3):
        q = run("cholesky", x, passes=passes)
        errors.append(np.abs(q.T @ q - np.eye(16)).max())
    assert errors[0] > 1e-2
    assert errors[1] < 1e-3
    assert errors[2] < ORTHONORMAL


def test_a_factor_that_is_not_finite_is_repeated_with_a_larger_shift():
    # Without a shift this Gram matrix has no Cholesky factor in float32.
    x = np.ones((8, 8)) + 1e-5 * gaussian(8, 8)
    unit = np.float32(x / np.linalg.norm(x, axis=0))
    factor = jax.jit(lambda x: jnp.linalg.cholesky(x.T @ x))(unit)
    assert np.isnan(factor).any()
    q = run("cholesky", x, passes=1, shift=0.0)
    assert np.isfinite(q).all()


@pytest.mark.quick("0.001-200", "1e-05")
@pytest.mark.parametrize("name", ["cholesky on CUDA", "cholesky in panels"])
@pytest.mark.parametrize("side", [64, 200])
@pytest.mark.parametrize("smallest", [1e-1, 1e-3, 1e-5])
def test_fixed_passes_are_as_accurate_as_adaptive_ones(name, side, smallest):
    x = near_singular(side, side, smallest=smallest)
    exact = qr(np.float64(np.float32(x)))
    error = lambda kernel: np.linalg.norm(run(kernel, x) - exact)
    assert error(name) <= 4 * error("cholesky") + side * EPS


@pytest.mark.parametrize("name", ["cholesky on CUDA", "cholesky in panels"])
@pytest.mark.parametrize("rank", [1, 2, 50, 99])
def test_fixed_passes_complete_the_range_of_a_singular_matrix(name, rank):
    x = gaussian(100, rank, seed=1) @ gaussian(rank, 100, seed=2)
    q = run(name, x)
    assert_orthonormal(q)
    lead = q[:, :rank]
    outside = x - lead @ (lead.T @ x)
    np.testing.assert_allclose(outside, 0, atol=1e-3 * np.linalg.norm(x, 2))


def test_fixed_passes_that_do_not_suffice_leave_the_previous():
    # The least pivot of this matrix hides how near to singular it is (Kahan).
    x = np.eye(128) - np.triu(np.ones((128, 128)), 1)
    previous = orthonormal(128, 128).astype(np.float32)
    q = run("cholesky on CUDA", x, previous)
    np.testing.assert_array_equal(q, previous)


@pytest.mark.broad
def test_fallback_where_the_method_is_defeated(monkeypatch):
    from optax_matrix.linalg import _cholesky_passes

    # No try suffices; the matrix beside it needs none (it is zero).
    monkeypatch.setattr(_cholesky_passes, "_MAX_TRIES", 0)
    x = jnp.asarray(np.stack([gaussian(6, 6), np.zeros((6, 6))]), jnp.float32)
    previous = jnp.asarray(np.stack([orthonormal(6, 6)] * 2), jnp.float32)
    kept = linalg.cholesky_qr(x, previous=previous)
    np.testing.assert_array_equal(kept, previous)
    fallen = linalg.cholesky_qr(x, previous=previous, fallback="householder")
    np.testing.assert_allclose(fallen[0], qr(np.asarray(x[0])), atol=30 * EPS)
    np.testing.assert_array_equal(fallen[1], previous[1])
    nothing = linalg.cholesky_qr(x)
    assert np.isnan(nothing[0]).all()
    np.testing.assert_array_equal(nothing[1], np.eye(6))


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({}, {"geqrf", "orgqr", "syev", "gesdd"}),
        ({"fallback": "householder"}, {"syev", "gesdd"}),
    ],
    ids=["default", "householder"],
)
def test_the_lowered_text_holds_no_other_decomposition(options, absent):
    x = jax.ShapeDtypeStruct((2, 300, 300), jnp.float32)
    text = jitted("cholesky", **options).lower(x).as_text().lower()
    present = {n for n in ("geqrf", "orgqr", "syev", "gesdd") if n in text}
    assert "potrf" in text
    assert present == {"geqrf", "orgqr", "syev", "gesdd"} - absent


def test_one_cholesky_and_one_small_solve():
    """The number of call sites is what a compiler for TPU charges for."""
    x = jax.ShapeDtypeStruct((2, 300, 300), jnp.float32)
    lowered = jitted("cholesky").trace(x).lower(lowering_platforms=("tpu",))
    text = lowered.as_text()
    assert text.count("stablehlo.cholesky") == 1
    assert text.count("stablehlo.triangular_solve") == 1


def test_large_matrices_go_one_by_one_on_cpu_each_by_its_own_passes():
    kinds = [gaussian(64, 64), near_singular(64, 64, smallest=1e-7), np.ones((64, 64))]
    x = np.stack([kinds, [np.zeros((64, 64)), *kinds[:2]]])
    previous = orthonormal(64, 64, seed=3).astype(np.float32)
    q = run("cholesky", x, np.broadcast_to(previous, x.shape))
    np.testing.assert_array_equal(q[1, 0], previous)
    np.testing.assert_array_equal(q[1, 1:], q[0, :2])
    assert_orthonormal(q)
    np.testing.assert_allclose(q[0, 0], qr(kinds[0]), atol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_wide_matrices_are_refused(name):
    with pytest.raises(ValueError, match="at least as many rows"):
        jax.eval_shape(KERNELS[name], ones(2, 3))


@pytest.mark.parametrize(
    "options", [{"passes": 0}, {"passes": True}, {"fallback": "svd"}], ids=str
)
def test_unknown_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        run("cholesky", np.eye(2), **options)


def test_the_shift_may_be_traced():
    x = np.float32(gaussian(6, 6))
    q = jax.jit(lambda x, s: linalg.cholesky_qr(x, shift=s))(x, 1e-6)
    assert_orthonormal(np.asarray(q, np.float64))


@pytest.mark.broad
def test_runs_under_shard_map(kernel, cpus):
    mesh = jax.sharding.Mesh(np.array(cpus[:2]), ("d",))
    # The devices take different numbers of passes.
    x = np.stack([gaussian(6, 6), near_singular(6, 6, smallest=1e-6)])
    x = jnp.asarray(x, jnp.float32)
    f = jax.shard_map(
        jitted(kernel.args[0]),
        mesh=mesh,
        in_specs=jax.P("d"),
        out_specs=jax.P("d"),
        check_vma=False,
    )
    q = jax.jit(f)(x)
    np.testing.assert_allclose(q[0], kernel(x)[0], atol=20 * EPS)
    # In the last direction of the other one rounding errors are 1e6 times as large.
    other = np.asarray(q[1], np.float64)
    assert_orthonormal(other)
    below = np.tril(other.T @ np.asarray(x[1], np.float64), -1)
    np.testing.assert_allclose(below, 0, atol=20 * EPS)
