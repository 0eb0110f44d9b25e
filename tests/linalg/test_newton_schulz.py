import functools
import inspect

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
    polar,
    rank_one,
    shapes,
    strict,
)
from optax.contrib import MuonDimensionNumbers
from optax.contrib._muon import orthogonalize_via_newton_schulz

from optax_matrix import linalg
from optax_matrix.linalg.coefficients import rows_for

KERNELS = {
    "newton_schulz": linalg.newton_schulz,
    "gram_newton_schulz": linalg.gram_newton_schulz,
}
# Rounding of a few products of float32 matrices, amplified by the slopes of the
# polynomials at zero (3.44 ** 5, about 500) for the smallest singular values.
ROUNDING = 2e-4


@functools.lru_cache(None, typed=True)
def jitted(name, **options):
    return jax.jit(functools.partial(KERNELS[name], **options))


@pytest.fixture(params=KERNELS)
def kernel(request):
    with strict():
        yield functools.partial(run, request.param)


def run(name, x, **options):
    return np.asarray(jitted(name, **options)(x))


def reference(x, table, steps):
    """The iteration as published, in float64: X <- aX + (bA + cAA)X."""
    x = np.asarray(x, np.float64)
    x = x / np.linalg.norm(x, axis=(-2, -1), keepdims=True)
    for i in range(steps):
        a, b, c = table[min(i, len(table) - 1)]
        gram = x @ np.swapaxes(x, -1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize(
    ("name", "table"),
    [(name, "YOU") for name in shapes()]
    + [("wide", "JORDAN"), ("wide", "POLAR_EXPRESS")],
)
def test_equals_the_float64_iteration(kernel, name, table):
    x, table = shapes()[name], getattr(linalg, table)
    ours = kernel(jnp.asarray(x, jnp.float32), coefficients=table)
    np.testing.assert_allclose(ours, reference(x, table, 5), atol=ROUNDING)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(2, 64, 96), (512, 520)], ids=["loop", "blocked"])
def test_large_matrices_take_the_cpu_path_with_equal_result(shape):
    x = gaussian(*shape)
    ours = run("newton_schulz", jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(ours, reference(x, linalg.JORDAN, 5), atol=ROUNDING)


def test_singular_values_follow_the_scalar_polynomial():
    # Exact identity: the iteration maps U S V' to U p(...p(S)) V'.
    s = np.array([1.0, 0.7, 0.2, 0.05, 0.01, 1e-3])
    x = matrix_with_singular_values(s, 6, 9)
    expected = s / np.linalg.norm(s)
    for _ in range(5):
        a, b, c = linalg.JORDAN[0]
        expected = a * expected + b * expected**3 + c * expected**5
    with jax.enable_x64(True):
        q = run("newton_schulz", np.asarray(x), eps=0.0)
    u, v = orthonormal(6, 6, 0), orthonormal(9, 6, 1)
    np.testing.assert_allclose(u.T @ q @ v, np.diag(expected), atol=1e-12)


def test_converging_table_gives_the_polar_factor(kernel):
    x = near_singular(12, 20, smallest=1e-2)
    table = linalg.polar_express(8)
    q = kernel(np.float32(x), coefficients=table, steps=8)
    np.testing.assert_allclose(q, polar(x), atol=1e-3)
    np.testing.assert_allclose(q @ q.T, np.eye(12), atol=1e-3)
    symmetric = q.T @ x
    np.testing.assert_allclose(symmetric, symmetric.T, atol=1e-3)
    assert np.linalg.eigvalsh((symmetric + symmetric.T) / 2).min() > -1e-3


def test_rotation_equivariance(kernel):
    x = gaussian(8, 20)
    p, q = orthonormal(8, 8, 5), orthonormal(20, 20, 6)
    turned = kernel(jnp.asarray(p @ x @ q, jnp.float32))
    np.testing.assert_allclose(turned, p @ kernel(np.float32(x)) @ q, atol=ROUNDING)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 7.0, 1e20])
def test_scale_invariance(kernel, scale):
    x = gaussian(8, 20)
    np.testing.assert_allclose(
        kernel(jnp.asarray(scale * x, jnp.float32)),
        kernel(np.float32(x)),
        atol=ROUNDING,
    )


def test_transpose_symmetry(kernel):
    x = np.float32(gaussian(8, 20))
    np.testing.assert_allclose(kernel(x.mT), kernel(x).T, atol=1e-6)


def test_batched_equals_loop_and_vmap(kernel):
    x = np.float32(shapes()["batched"])
    batched = kernel(x)
    loop = np.stack([np.stack([kernel(y) for y in row]) for row in x])
    np.testing.assert_allclose(batched, loop, atol=1e-5)
    np.testing.assert_allclose(
        jax.vmap(jitted("newton_schulz"), in_axes=1, out_axes=1)(x),
        run("newton_schulz", x),
        atol=1e-5,
    )


def test_hard_matrices_stay_finite_and_bounded(kernel):
    zero = np.zeros((8, 20))
    one_hot = np.eye(8, 20) * (np.arange(8) == 3)[:, None]
    mixed = gaussian(8, 20) * np.geomspace(1e-20, 1e15, 8)[:, None]
    x = np.stack([zero, rank_one(8, 20), one_hot, mixed, near_singular(8, 20, 1e-7)])
    q = kernel(np.float32(x))
    assert np.isfinite(q).all()
    np.testing.assert_array_equal(q[0], 0)
    assert np.linalg.norm(q, ord=2, axis=(-2, -1)).max() < 1.2


def test_one_row_is_normalised(kernel):
    x = gaussian(1, 8)
    q = kernel(np.float32(x), coefficients=linalg.CUBIC, steps=8)
    np.testing.assert_allclose(q, x / np.linalg.norm(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtype_is_kept_and_computed_in_float32(kernel, dtype):
    x = np.asarray(gaussian(8, 20), dtype)
    q = kernel(x)
    assert q.dtype == dtype
    exact = kernel(np.float32(x))
    np.testing.assert_array_equal(q, exact.astype(dtype))


def test_float64_keeps_its_precision(kernel):
    x = gaussian(8, 20)
    table = linalg.polar_express(12)
    with jax.enable_x64(True):
        q = kernel(np.asarray(x), coefficients=table, steps=12)
    assert q.dtype == np.float64
    np.testing.assert_allclose(q, polar(x), atol=1e-10)


def test_a_numpy_table_is_a_table(kernel):
    x = np.float32(gaussian(8, 20))
    of_numpy = functools.partial(
        KERNELS[kernel.args[0]], coefficients=np.array(linalg.YOU)
    )
    q = jax.jit(of_numpy)(x)
    np.testing.assert_allclose(q, kernel(x, coefficients=linalg.YOU), atol=2e-6)


def test_restarts_outside_the_steps_are_ignored():
    x = np.float32(gaussian(8, 20))
    np.testing.assert_array_equal(
        run("gram_newton_schulz", x, restarts=(0, 2, 2, 9)),
        run("gram_newton_schulz", x, restarts=(2,)),
    )


@pytest.mark.parametrize(
    "table",
    [((1.5, -0.5),), (), (1.5, -0.5, 0.0), ((1.5, -0.5, 0.0), (1.0,)), (("a", 1, 2),)],
)
def test_bad_coefficients_are_named(table):
    with pytest.raises(ValueError, match="`coefficients` must be rows of three"):
        inspect.unwrap(rows_for)(table, 5)


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, "5", None])
def test_steps_are_a_positive_int(steps):
    with pytest.raises(ValueError, match="`steps` must be a positive int, got"):
        inspect.unwrap(rows_for)(linalg.JORDAN, steps)


def test_runs_under_shard_map_without_communication(cpus):
    mesh = jax.sharding.Mesh(np.array(cpus), ("d",))
    spec = jax.P("d")
    x = np.float32(gaussian(8, 64, 64))
    f = jax.jit(
        jax.shard_map(linalg.newton_schulz, mesh=mesh, in_specs=spec, out_specs=spec)
    )
    np.testing.assert_allclose(f(x), run("newton_schulz", x), atol=1e-5)
    text = f.lower(x).compile().as_text()
    assert not any(word in text for word in ("all-reduce", "all-gather", "all-to-all"))


SPECTRA = {"inverse": 1 / np.arange(1, 513), "log": np.geomspace(1, 1e-4, 512)}
RAW = np.array(linalg.polar_express(5, safety=1.0))
TABLES = {
    "jordan": linalg.JORDAN,
    "you": linalg.YOU,
    "polar_express": linalg.polar_express(5),
    "contracted": tuple(map(tuple, (RAW / 1.05 ** np.array([1, 3, 5])).tolist())),
}


@functools.lru_cache(None, typed=True)
def large(spectrum):
    if spectrum == "gaussian":
        x = gaussian(512, 2048)
        return np.float32(x), polar(x)
    s = SPECTRA[spectrum]
    x = matrix_with_singular_values(s, 512, 2048)
    return np.float32(x), orthonormal(512, 512) @ orthonormal(2048, 512, 1).T


@pytest.mark.broad
@pytest.mark.parametrize(
    ("spectrum", "name", "table", "expected"),
    [
        ("gaussian", "newton_schulz", "jordan", 0.146),
        ("gaussian", "newton_schulz", "you", 0.017),
        ("gaussian", "newton_schulz", "polar_express", 0.089),
        ("inverse", "newton_schulz", "jordan", 0.178),
        ("inverse", "newton_schulz", "you", 0.137),
        ("inverse", "gram_newton_schulz", "contracted", 0.086),
        ("log", "newton_schulz", "you", 0.593),
        ("log", "gram_newton_schulz", "contracted", 0.551),
    ],
)
def test_accuracy_known_from_earlier_measurements(spectrum, name, table, expected):
    x, exact = large(spectrum)
    q = run(name, x, coefficients=TABLES[table])
    error = np.linalg.norm(q - exact) / np.sqrt(512)
    assert error == pytest.approx(expected, rel=0.1)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("table", "narrow", "wide"), [("jordan", 0.128, 0.146), ("you", 0.024, 0.017)]
)
def test_standard_form_is_as_accurate_in_bfloat16(table, narrow, wide):
    x, exact = large("gaussian")
    options = {"coefficients": TABLES[table], "compute_dtype": jnp.bfloat16}
    error = np.linalg.norm(run("newton_schulz", x, **options) - exact) / np.sqrt(512)
    # XLA may keep more than bfloat16 between operations: the error lies between the
    # figure with every product rounded and that of float32; 5% for the third digit.
    low, high = sorted((narrow, wide))
    assert 0.95 * low < error < 1.05 * high


@pytest.mark.parametrize("table", ["JORDAN", "POLAR_EXPRESS"])
def test_a_step_in_16_bits_rounds_one_sum(table):
    """``a X`` and ``Z X``, rounded apart, have twice this error: they nearly cancel."""
    x = gaussian(64, 256)
    options = {"coefficients": getattr(linalg, table), "compute_dtype": jnp.bfloat16}
    q = run("newton_schulz", np.float32(x), **options)
    exact = reference(x, options["coefficients"], 5)
    error = np.linalg.norm(q - exact) / np.linalg.norm(exact)
    assert error < {"JORDAN": 0.018, "POLAR_EXPRESS": 0.019}[table]


@pytest.mark.parametrize("shape", [(2, 64, 150), (3, 150, 64)], ids=["wide", "tall"])
def test_gram_form_on_cpu_is_the_plain_iteration(shape):
    """Large long matrices go another way on CPU; the result must not tell."""
    x = np.random.default_rng(0).standard_normal(shape)
    y = x if shape[1] < shape[2] else x.swapaxes(1, 2)
    y = y / np.linalg.norm(y, axis=(1, 2), keepdims=True)
    for _ in range(5):
        a = y @ y.swapaxes(1, 2)
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
    want = y if shape[1] < shape[2] else y.swapaxes(1, 2)
    got = run("newton_schulz", np.float32(x))
    np.testing.assert_allclose(got, want, atol=2e-5)


WITH_AOL = {"coefficients": linalg.AOL, "steps": 4, "preconditioning": "aol"}


@pytest.mark.skipif(
    "preconditioning"
    not in inspect.signature(orthogonalize_via_newton_schulz).parameters,
    reason="this version of optax has no preconditioning",
)
@pytest.mark.parametrize(
    ("options", "coefficients"),
    [(WITH_AOL, linalg.AOL), ({"preconditioning": "aol"}, linalg.JORDAN[0])],
    ids=["own table", "alone"],
)
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (70, 150)])
def test_aol_scales_rows_as_optax_does(shape, options, coefficients):
    x = np.float32(gaussian(*shape))
    expected = jax.jit(
        lambda x: orthogonalize_via_newton_schulz(
            x,
            jnp.asarray(coefficients),
            preconditioning="aol",
            dimension_numbers=MuonDimensionNumbers(),
        )
    )(x)
    found = run("newton_schulz", x, **options)
    np.testing.assert_allclose(found, expected, atol=3e-5)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (70, 150)])
def test_aol_divides_rows_of_the_short_side(shape):
    x = gaussian(*shape)
    y = x if shape[0] <= shape[1] else x.T
    y = y / np.sqrt(np.abs(y @ y.T).sum(axis=1, keepdims=True))
    for a, b, c in linalg.AOL:
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    y = y if shape[0] <= shape[1] else y.T
    for scale in (1e-20, 1, 1e20):
        q = run("newton_schulz", np.float32(scale * x), **WITH_AOL)
        np.testing.assert_allclose(q, y, atol=2e-5)
    zero = run("newton_schulz", np.zeros(shape, np.float32), **WITH_AOL)
    np.testing.assert_array_equal(zero, 0)


def test_a_preconditioning_without_form_is_named():
    with pytest.raises(ValueError, match="`preconditioning` must be 'frobenius' or"):
        run("newton_schulz", ones(2, 3), preconditioning="schatten")
