"""Skew triangles, the maps to orthogonal blocks, and how orthogonal they are."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, zeros

from examples.study.benchmarks._flops import product_flops
from optax_matrix.diagnostics import orthogonality_error
from optax_matrix.linalg import (
    cayley,
    cayley_neumann,
    cayley_taylor,
    exponential,
    from_skew,
    to_skew,
)
from optax_matrix.linalg._orthogonal import inverse_of_orthogonal
from optax_matrix.linalg.skew import triangle_size

EXACT = {"cayley": cayley, "exponential": exponential}
SERIES = {
    **{f"neumann-{k}": partial(cayley_neumann, terms=k) for k in range(1, 6)},
    **{f"taylor-{k}": partial(cayley_taylor, terms=k) for k in range(1, 6)},
}
MAPS = EXACT | SERIES
# |G G' - I| = c s^p (1 + O(s^2)) at |Q| = s.
POWERS = {
    **{"neumann-1": (2, 2), "neumann-2": (1, 6), "neumann-3": (2, 4)},
    **{"neumann-4": (1, 10), "neumann-5": (2, 6)},
    **{"taylor-1": (4, 2), "taylor-2": (4, 4), "taylor-3": (4, 4)},
    **{"taylor-4": (4, 6), "taylor-5": (4, 6)},
}


def skew(b, size, *batch, dtype=np.float64):
    """Skew-symmetric matrices with a largest singular value of `size`."""
    q = gaussian(*batch, b, b, seed=b)
    q = q - np.swapaxes(q, -1, -2)
    norm = np.linalg.norm(q, 2, axis=(-2, -1), keepdims=True)
    return np.asarray(size * q / norm, dtype)


@functools.lru_cache(None, typed=True)
def jitted(name):
    return jax.jit(MAPS[name])


def taylor_series(q, coefficients):
    terms, power = [], np.eye(q.shape[-1])
    for c in coefficients:
        terms.append(c * power)
        power = power @ q
    return sum(terms)


@pytest.mark.quick("1", "2")
@pytest.mark.parametrize("b", [1, 2, 5])
def test_triangles_and_skew_matrices_are_one_to_one(b):
    v = np.float32(gaussian(3, 2, triangle_size(b)))
    q, back = jax.device_get(jax.jit(lambda v: (q := to_skew(v, b), from_skew(q)))(v))
    assert q.shape == (3, 2, b, b)
    np.testing.assert_array_equal(q, -q.swapaxes(-1, -2))
    np.testing.assert_array_equal(back, v)
    upper = q[..., *np.triu_indices(b, 1)]
    np.testing.assert_array_equal(upper, v)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MAPS)
def test_maps_are_what_they_say(name):
    q = skew(5, 0.7, 2)
    eye, (kind, _, k) = np.eye(5), name.partition("-")
    k = int(k or 0)
    want = {
        "neumann": lambda: (eye + q) @ taylor_series(q, [1] * (k + 1)),
        "taylor": lambda: taylor_series(q, [1] + [2] * k),
        "cayley": lambda: (eye + q) @ np.linalg.inv(eye - q),
        "exponential": lambda: taylor_series(
            q, 1 / np.cumprod([1.0, *range(1, 30)], dtype=float)
        ),
    }[kind]()
    np.testing.assert_allclose(jitted(name)(q), want, atol=1e-13)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SERIES)
def test_orthogonality_error_has_the_stated_power(name):
    factor, power = POWERS[name]
    sizes = np.array([0.1, 0.2])
    errors = []
    for s in sizes:
        g = np.asarray(jitted(name)(skew(6, s)))
        errors.append(np.linalg.norm(g @ g.T - np.eye(6), 2))
    # The next term of the series is of relative size s^2, times at most 2.
    np.testing.assert_allclose(errors, factor * sizes**power, rtol=0.09)
    slope = np.log2(errors[1] / errors[0])
    assert abs(slope - power) < 0.1


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [0.0, 0.5, 5.0])
def test_exact_maps_are_orthogonal_to_rounding(name, size):
    g = np.asarray(jitted(name)(skew(8, size, 3, dtype=np.float32)))
    # Eight terms of a sum, a squaring or a condition number of 5 on top.
    error = np.asarray(jax.jit(orthogonality_error)(g))
    assert error.max() < 30 * np.finfo(np.float32).eps
    assert np.linalg.det(g).min() > 0


@pytest.mark.parametrize("name", MAPS)
def test_maps_keep_dtype_and_the_identity(name):
    for dtype in (jnp.float32, jnp.bfloat16):
        g = jitted(name)(np.zeros((2, 1, 4, 4), dtype))
        assert g.dtype == dtype
        g = np.float32(g)
        np.testing.assert_array_equal(g, np.eye(4)[None, None] + 0 * g)


def products(f, b=4):
    flops, _ = product_flops(jax.make_jaxpr(f)(zeros(b, b)))
    return flops / (2 * b**3)


def test_series_take_the_fewest_products():
    """A polynomial of degree d in one matrix needs at least log2(d) of them."""
    counts = [products(partial(cayley_neumann, terms=k)) for k in range(1, 6)]
    assert counts == [1, 2, 2, 3, 3]
    assert [products(partial(cayley_taylor, terms=k)) for k in (2, 4)] == [1, 2]
    assert products(exponential) == 4 + 4


@jax.jit
def map_and_inverse(q):
    g = cayley_neumann(q)
    return g, inverse_of_orthogonal(g)


@pytest.mark.parametrize("size", [0.1, 0.5, 0.9])
def test_inverse_of_orthogonal_is_exact(size):
    g, got = map_and_inverse(skew(6, size, 2, dtype=np.float32))
    want = np.linalg.inv(np.asarray(g, np.float64))
    np.testing.assert_allclose(got, want, atol=20 * jnp.finfo(jnp.float32).eps)


def test_inverse_of_what_is_far_from_orthogonal_is_finite():
    g, got = map_and_inverse(skew(6, 30.0, 2, dtype=np.float32))
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(jax.jit(inverse_of_orthogonal)(np.zeros_like(g)), 0)


@pytest.mark.broad
def test_orthogonality_error_is_relative_to_the_identity():
    g = jnp.asarray(np.stack([np.eye(4), 2 * np.eye(4)]), jnp.float32)
    np.testing.assert_allclose(orthogonality_error(g), [0, 3])


@pytest.mark.broad
def test_several_solves_at_once_do_not_lock_up(cpus):
    """JAX 0.10 does with several batched QR decompositions on CPU."""
    assert cpus
    qs = [skew(b, 0.5, 16, dtype=jnp.float32) for b in (24, 32, 40, 48)]
    run = jax.jit(lambda qs: [cayley(q) for q in qs])
    for _ in range(3):
        for g in run(qs):
            assert float(orthogonality_error(g).max()) < 1e-5


def test_number_of_terms_is_checked():
    with pytest.raises(ValueError, match="`terms` must be a positive int, got 0"):
        jax.eval_shape(lambda: cayley_neumann(jnp.zeros((2, 2)), 0))
