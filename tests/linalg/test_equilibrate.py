import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, ones, rank_one, shapes, strict

from optax_matrix import linalg
from optax_matrix.linalg.scale import check_matrices

KERNELS = {
    "scale_rows": linalg.scale_rows,
    "scale_columns": linalg.scale_columns,
    "scale_rows_and_columns": linalg.scale_rows_and_columns,
    "standardize_rows": linalg.standardize_rows,
    "sinkhorn": linalg.sinkhorn,
    "alternating": functools.partial(linalg.sinkhorn, scheme="alternating"),
    "ruiz": functools.partial(linalg.sinkhorn, scheme="ruiz"),
}
# Sums over at most 20 entries of float32 and a few roots; sinkhorn composes five.
ROUNDING = 1e-5


@functools.lru_cache(None, typed=True)
def jitted(name):
    return jax.jit(KERNELS[name])


def run(name, x):
    with strict():
        return np.asarray(jitted(name)(x))


@pytest.fixture(params=KERNELS)
def kernel(request):
    return functools.partial(run, request.param)


def norms(x, axis):
    squares = np.sum(x * x, axis=axis, keepdims=True)
    return np.sqrt(squares + 1e-8 * squares.mean(axis=(-2, -1), keepdims=True))


def rms(x, axis):
    return np.sqrt(np.mean(x * x, axis=axis, keepdims=True))


def sinkhorn_reference(x, rounds, scheme):
    """The rounds as printed: rescale the matrix itself, renormalise each time."""
    x = np.asarray(x, np.float64)
    for _ in range(rounds):
        row, col = rms(x, -1), rms(x, -2)
        if scheme == "simultaneous":
            x = x / row / col
        elif scheme == "alternating":
            x = x / row
            x = x / rms(x, -2)
        else:
            x = x / np.sqrt(row) / np.sqrt(col)
        x = x / rms(x, (-2, -1))
    return x


REFERENCES = {
    "scale_rows": lambda x: x / norms(x, -1),
    "scale_columns": lambda x: x / norms(x, -2),
    "scale_rows_and_columns": lambda x: (
        np.linalg.norm(x, axis=(-2, -1), keepdims=True)
        * x
        / norms(x, -1)
        / norms(x, -2)
    ),
    "standardize_rows": lambda x: (
        (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    ),
    "sinkhorn": lambda x: sinkhorn_reference(x, 5, "simultaneous"),
    "alternating": lambda x: sinkhorn_reference(x, 5, "alternating"),
    "ruiz": lambda x: sinkhorn_reference(x, 5, "ruiz"),
}


@pytest.mark.quick("wide", "one_row")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", ["wide", "tall", "one_row", "batched"])
def test_equals_the_float64_reference(name, shape):
    x = shapes()[shape]
    ours = run(name, np.float32(x))
    np.testing.assert_allclose(ours, REFERENCES[name](x), rtol=1e-4, atol=ROUNDING)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 7.0, 1e20])
def test_scale_invariance(kernel, scale):
    x = gaussian(8, 20) * np.geomspace(1, 1e-4, 8)[:, None]
    np.testing.assert_allclose(
        kernel(jnp.asarray(scale * x, jnp.float32)),
        kernel(np.float32(x)),
        rtol=1e-4,
        atol=ROUNDING,
    )


def test_zero_and_rank_one_stay_finite(kernel):
    x = np.stack([np.zeros((8, 20)), rank_one(8, 20), np.ones((8, 20))])
    y = kernel(np.float32(x))
    np.testing.assert_array_equal(y[0], 0)
    assert np.isfinite(y).all()
    assert np.abs(y).max() < 10


def test_zero_rows_and_columns_stay_zero(kernel):
    x = gaussian(6, 9)
    x[2] = x[:, 4] = 0
    y = kernel(np.float32(x))
    np.testing.assert_array_equal(y[2], 0)
    if "standardize" not in kernel.args[0]:
        np.testing.assert_array_equal(y[:, 4], 0)
    assert np.isfinite(y).all()


@pytest.mark.quick("scale_columns", "sinkhorn")
def test_batched_equals_loop_and_vmap(kernel):
    x = np.float32(shapes()["batched"])
    loop = np.stack([np.stack([kernel(y) for y in row]) for row in x])
    np.testing.assert_allclose(kernel(x), loop, atol=ROUNDING)
    mapped = jax.vmap(jitted(kernel.args[0]), in_axes=1, out_axes=1)(x)
    np.testing.assert_allclose(mapped, loop, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [jnp.bfloat16])
def test_narrow_dtypes_are_kept_and_computed_in_float32(kernel, dtype):
    x = np.asarray(gaussian(8, 20), dtype)
    y = kernel(x)
    assert y.dtype == dtype
    exact = REFERENCES[kernel.args[0]](np.asarray(x, np.float64))
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=eps, atol=ROUNDING)


def test_float64_keeps_its_precision(kernel):
    x = gaussian(8, 20)
    with jax.enable_x64(True):
        y = kernel(np.asarray(x))
    assert y.dtype == np.float64
    # The floor of a variance is left out of its reference: half of 1e-8.
    np.testing.assert_allclose(y, REFERENCES[kernel.args[0]](x), rtol=1e-6)


@pytest.mark.broad
def test_rows_then_columns_differ_from_both_at_once():
    x = jnp.asarray(gaussian(8, 20), jnp.float32)
    both = linalg.scale_rows_and_columns(x)
    sequential = linalg.scale_columns(linalg.scale_rows(x))
    ratio = both / sequential
    assert np.ptp(ratio) / np.mean(ratio) > 0.05


@pytest.mark.broad
def test_columns_are_rows_of_the_transpose():
    x = jnp.asarray(gaussian(8, 20), jnp.float32)
    np.testing.assert_array_equal(linalg.scale_columns(x), linalg.scale_rows(x.mT).mT)


def test_eps_is_relative_to_the_mean_squared_norm():
    x = np.diag([1.0, 1e-3])
    with jax.enable_x64(True):
        y = jax.jit(lambda x: linalg.scale_rows(x, eps=1e-2))(x)
    floor = 1e-2 * (1 + 1e-6) / 2
    np.testing.assert_allclose(
        np.diagonal(y), [1 / np.sqrt(1 + floor), 1e-3 / np.sqrt(1e-6 + floor)]
    )


def test_constant_rows_do_not_inflate_rounding():
    x = np.float32([[0.1] * 20, [0.3] * 20])
    assert np.abs(run("standardize_rows", x)).max() < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 6, 7, 4097])
def test_constant_rows_become_zero_compiled_or_not(n):
    """And not noise, which a polar factor would bring to the size of an update."""
    rows = np.random.default_rng(n).standard_normal((30, 4, 1)).astype(np.float32)
    x = jnp.asarray(rows * np.ones(n, np.float32))
    for f in (linalg.standardize_rows, jitted("standardize_rows")):
        np.testing.assert_array_equal(f(x), 0)
    # What is there beside a large mean is not rounding.
    ramp = jnp.float32(1 + 1e-5 * np.linspace(-1, 1, n))[None] * jnp.ones((4, 1))
    y = linalg.standardize_rows(ramp, eps=0.0)
    np.testing.assert_allclose(np.std(y, axis=-1), 1, rtol=1e-3)


def up_to_scale(x):
    d = np.diagonal(x)
    return d / d[0]


@pytest.mark.broad
def test_simultaneous_sinkhorn_oscillates_on_a_diagonal():
    x = jnp.diag(jnp.array([1.0, 2.0, 4.0, 8.0]))
    four, five = (up_to_scale(linalg.sinkhorn(x, rounds)) for rounds in (4, 5))
    np.testing.assert_allclose(four, [1, 2, 4, 8], rtol=1e-6)
    np.testing.assert_allclose(five, [1, 1 / 2, 1 / 4, 1 / 8], rtol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("scheme", ["ruiz", "alternating"])
def test_other_schemes_balance_a_diagonal(scheme):
    x = jnp.diag(jnp.array([1.0, 2.0, 4.0, 8.0]))
    y = linalg.sinkhorn(x, 5, scheme)
    np.testing.assert_allclose(up_to_scale(y), 1, rtol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("scheme", ["simultaneous", "alternating", "ruiz"])
def test_rounds_converge_to_unit_root_mean_squares(scheme):
    x = gaussian(8, 20) * np.geomspace(1, 100, 20)
    with jax.enable_x64(True):
        y = np.asarray(linalg.sinkhorn(jnp.asarray(x), 60, scheme))
    np.testing.assert_allclose(rms(y, -1), 1, rtol=1e-6)
    np.testing.assert_allclose(rms(y, -2), 1, rtol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("scheme", ["simultaneous", "alternating", "ruiz"])
def test_mean_square_is_one_without_being_computed(scheme, rounds):
    """Whatever is zero; alternating rounds know it from the columns that are not."""
    x = gaussian(3, 8, 20) * np.geomspace(1, 100, 20)
    x[0, 3] = x[0, :, 5] = x[1, :, :7] = 0
    with jax.enable_x64(True):
        y = np.asarray(linalg.sinkhorn(jnp.asarray(x), rounds, scheme))
    np.testing.assert_allclose(rms(y, (-2, -1)), 1, rtol=1e-14)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 11])
@pytest.mark.parametrize("scheme", ["simultaneous", "alternating", "ruiz"])
def test_every_number_of_rounds_is_that_of_the_reference(scheme, rounds):
    x = gaussian(2, 7, 11) * np.geomspace(1, 9, 11)
    with jax.enable_x64(True):
        y = np.asarray(linalg.sinkhorn(jnp.asarray(x), rounds, scheme))
    np.testing.assert_allclose(y, sinkhorn_reference(x, rounds, scheme), rtol=1e-12)


@pytest.mark.parametrize("rounds", [3, 4])
def test_k_simultaneous_rounds_read_the_matrix_k_plus_one_times(rounds):
    """The first time for its squares; then two products take the same operand."""
    f = lambda x: linalg.sinkhorn(x, rounds)
    found = jax.make_jaxpr(f)(np.ones((7, 11), np.float32))
    products = re.findall(r"dot_general\[.*?\] (\w+) ", str(found), re.DOTALL)
    assert len(products) == 2 * rounds
    assert products[::2] == products[1::2]


@pytest.mark.parametrize("rounds", [0, -1, 2.0, True])
@pytest.mark.parametrize("kernel", [linalg.sinkhorn, linalg.rank_one_scales])
def test_rounds_are_a_positive_int(kernel, rounds):
    with pytest.raises(ValueError, match="`rounds` must be a positive int, got"):
        jax.eval_shape(lambda: kernel(jnp.ones((2, 2)), rounds))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (ones(3), r"`x` must be matrices .* got shape \(3,\)"),
        (np.ones((3, 3), np.int32), "`x` must be floating, got dtype int32"),
    ],
)
def test_what_is_no_stack_of_matrices_is_named(x, message):
    with pytest.raises(ValueError, match=message):
        check_matrices(x)


def test_unknown_scheme_is_named():
    kernel = getattr(linalg.sinkhorn, "__wrapped__", linalg.sinkhorn)
    with pytest.raises((ValueError, TypeError), match="scheme"):
        kernel(ones(2, 2), 5, "rows")


@pytest.mark.broad
def test_scales_are_the_leading_singular_vectors_of_the_squares():
    x = gaussian(32, 48)
    u, s, vt = np.linalg.svd(x * x)
    with jax.enable_x64(True):
        row, col = (np.asarray(v) for v in linalg.rank_one_scales(jnp.asarray(x), 30))
    q, t = row**2, col**2
    np.testing.assert_allclose(q / np.linalg.norm(q), np.abs(u[:, 0]), rtol=1e-10)
    np.testing.assert_allclose(t / np.linalg.norm(t), np.abs(vt[0]), rtol=1e-10)
    # s = P'q/|q|^2 at the fixed point, so |q| |s| is the singular value.
    assert np.linalg.norm(q) * np.linalg.norm(t) == pytest.approx(s[0], rel=1e-10)


@pytest.mark.broad
def test_five_rounds_have_converged_on_a_gaussian():
    # A round shrinks the error by (s2/s1)^2 of the squares, about (sqrt(2) (sqrt(m) +
    # sqrt(n)) / sqrt(mn))^2 = 0.023 here; five rounds by 6e-9.
    with jax.enable_x64(True):
        x = jnp.asarray(gaussian(256, 512))
        five, many = (linalg.rank_one_scales(x, rounds) for rounds in (5, 30))
    for a, b in zip(five, many, strict=True):
        np.testing.assert_allclose(a, b, rtol=6e-9)


@pytest.mark.slow
def test_scales_follow_the_published_recursion():
    x = gaussian(6, 9)
    p, q = x * x, np.ones(6)
    for _ in range(2):
        s = p.T @ q / (q @ q)
        q = p @ s / (s @ s)
    with strict():
        row, col = linalg.rank_one_scales(jnp.asarray(x, jnp.float32), 2)
    np.testing.assert_allclose(row, np.sqrt(q), rtol=1e-5)
    np.testing.assert_allclose(col, np.sqrt(s), rtol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_scales_are_linear_in_the_columns_and_free_in_the_rows(scale):
    x = jnp.asarray(gaussian(2, 8, 20), jnp.float32)
    row, col = linalg.rank_one_scales(x)
    big_row, big_col = linalg.rank_one_scales(x * jnp.float32(scale))
    np.testing.assert_allclose(big_row, row, rtol=1e-5)
    np.testing.assert_allclose(big_col / np.float32(scale), col, rtol=1e-5)
    assert row.shape == (2, 8)
    assert col.shape == (2, 20)


@pytest.mark.broad
def test_scales_of_nothing_are_zero_and_of_zero_rows_zero():
    x = gaussian(6, 9)
    x[2] = x[:, 4] = 0
    row, col = linalg.rank_one_scales(jnp.asarray([x, np.zeros((6, 9))], jnp.float32))
    assert row[0, 2] == col[0, 4] == 0
    np.testing.assert_array_equal(row[1], 0)
    np.testing.assert_array_equal(col[1], 0)
    assert np.isfinite(row).all()


@pytest.mark.broad
def test_scales_are_float32_statistics_for_narrow_matrices():
    row, col = linalg.rank_one_scales(jnp.ones((3, 4), jnp.bfloat16))
    assert row.dtype == col.dtype == jnp.float32
