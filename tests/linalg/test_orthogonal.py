"""Skew triangles, the maps to orthogonal blocks, and how orthogonal they are."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian

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
    return jnp.asarray(size * q / norm, dtype)


def taylor_series(q, coefficients):
    terms, power = [], np.eye(q.shape[-1])
    for c in coefficients:
        terms.append(c * power)
        power = power @ q
    return sum(terms)


@pytest.mark.quick("1", "2")
@pytest.mark.parametrize("b", [1, 2, 5])
def test_triangles_and_skew_matrices_are_one_to_one(b):
    v = jnp.asarray(gaussian(3, 2, triangle_size(b)), jnp.float32)
    q = to_skew(v, b)
    assert q.shape == (3, 2, b, b)
    np.testing.assert_array_equal(q, -q.mT)
    np.testing.assert_array_equal(from_skew(q), v)
    upper = np.asarray(q)[..., *np.triu_indices(b, 1)]
    np.testing.assert_array_equal(upper, v)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MAPS)
def test_maps_are_what_they_say(name):
    q = np.asarray(skew(5, 0.7, 2))
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
    np.testing.assert_allclose(MAPS[name](jnp.asarray(q)), want, atol=1e-13)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SERIES)
def test_orthogonality_error_has_the_stated_power(name):
    factor, power = POWERS[name]
    sizes = np.array([0.1, 0.2])
    errors = []
    for s in sizes:
        g = np.asarray(SERIES[name](skew(6, s)))
        errors.append(np.linalg.norm(g @ g.T - np.eye(6), 2))
    # The next term of the series is of relative size s^2, times at most 2.
    np.testing.assert_allclose(errors, factor * sizes**power, rtol=0.09)
    slope = np.log2(errors[1] / errors[0])
    assert abs(slope - power) < 0.1


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("size", [0.0, 0.5, 5.0])
def test_exact_maps_are_orthogonal_to_rounding(name, size):
    g = EXACT[name](skew(8, size, 3, dtype=jnp.float32))
    # Eight terms of a sum, a squaring or a condition number of 5 on top.
    assert float(orthogonality_error(g).max()) < 30 * jnp.finfo(jnp.float32).eps
    assert np.linalg.det(np.asarray(g)).min() > 0


@pytest.mark.parametrize("name", MAPS)
def test_maps_keep_dtype_and_the_identity(name):
    for dtype in (jnp.float32, jnp.bfloat16):
        g = MAPS[name](jnp.zeros((2, 1, 4, 4), dtype))
        assert g.dtype == dtype
        np.testing.assert_array_equal(
            g.astype(jnp.float32), np.eye(4)[None, None] + 0 * g
        )


def products(f, b=4):
    flops, _ = product_flops(jax.make_jaxpr(f)(jnp.zeros((b, b))))
    return flops / (2 * b**3)


def test_series_take_the_fewest_products():
    """A polynomial of degree d in one matrix needs at least log2(d) of them."""
    counts = [products(partial(cayley_neumann, terms=k)) for k in range(1, 6)]
    assert counts == [1, 2, 2, 3, 3]
    assert [products(partial(cayley_taylor, terms=k)) for k in (2, 4)] == [1, 2]
    assert products(exponential) == 4 + 4


@pytest.mark.parametrize("size", [0.1, 0.5, 0.9])
def test_inverse_of_orthogonal_is_exact(size):
    g = cayley_neumann(skew(6, size, 2, dtype=jnp.float32))
    got = inverse_of_orthogonal(g)
    want = np.linalg.inv(np.asarray(g, np.float64))
    np.testing.assert_allclose(got, want, atol=20 * jnp.finfo(jnp.float32).eps)


def test_inverse_of_what_is_far_from_orthogonal_is_finite():
    g = cayley_neumann(skew(6, 30.0, 2, dtype=jnp.float32))
    assert jnp.isfinite(inverse_of_orthogonal(g)).all()
    np.testing.assert_array_equal(inverse_of_orthogonal(0 * g), 0)


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
        cayley_neumann(jnp.zeros((2, 2)), 0)
