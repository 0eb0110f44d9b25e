"""Fingerprints of parameters, and updates whose rounding is foreseen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

from optax_matrix.transforms.stochastic_primitives._fingerprint import (
    fingerprint,
    rounded,
    update_towards,
)

DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


@pytest.mark.broad
@pytest.mark.parametrize("dtype", DTYPES)
def test_fingerprint_tells_one_bit_in_one_matrix(dtype):
    x = np.asarray(gaussian(3, 4, 5), dtype)
    other, swapped = x.copy(), x.copy()
    other[1, 2, 3] = np.nextafter(x[1, 2, 3], np.asarray(9, dtype))
    of = jax.jit(fingerprint)
    before = np.asarray(of(x))
    assert before.dtype == np.uint32
    np.testing.assert_array_equal(before != of(other), [False, True, False])
    # Exchanged entries have the same sum of bits, but not the same places.
    swapped[0] = x[0, :, ::-1]
    assert np.asarray(of(swapped))[0] != before[0]


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_fingerprint_sees_all_of_a_float64():
    x = np.asarray(gaussian(2, 3, 3))
    other = x.copy()
    other[1, 0, 0] = np.nextafter(x[1, 0, 0], 9.0)
    of = jax.jit(fingerprint)
    np.testing.assert_array_equal(np.asarray(of(x)) != of(other), [False, True])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("update_dtype", [None, jnp.bfloat16])
def test_the_foreseen_parameters_are_those_of_optax(dtype, update_dtype):
    w = np.asarray(gaussian(2, 40, 30), dtype)
    target = np.float32(0.1 * gaussian(2, 40, 30, seed=1)) + np.float32(w)
    target[0] *= np.float32(1e-3)  # Far below W: sums are not exact.
    towards = jax.jit(update_towards, static_argnums=2)
    update, foreseen = jax.device_get(towards(target, w, update_dtype))
    if update_dtype is not None and dtype == jnp.float32:
        on_the_way = update.astype(update_dtype).astype(dtype)
        np.testing.assert_array_equal(on_the_way, update)
    applied = jax.jit(optax.apply_updates)({"w": w}, {"w": update})["w"]
    assert foreseen.dtype == update.dtype == dtype
    np.testing.assert_array_equal(applied, foreseen)
    error = np.abs(np.float32(applied) - target)
    # An ulp of W, and one of the update.
    coarsest = jnp.finfo(update_dtype or dtype).eps
    size = np.abs(np.float32(w)) + np.abs(target)
    assert (error <= np.float32(coarsest) * size + 1e-6).all()


def test_rounded_rounds_as_a_cast_does():
    x = np.float32(gaussian(50, 50))
    x[0] *= np.float32(1e-5)  # Subnormal in float16.
    for dtype in (jnp.bfloat16, jnp.float16):
        want = np.float32(jnp.asarray(x).astype(dtype))  # As XLA casts.
        got = jax.jit(rounded, static_argnums=1)(x, dtype)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(rounded(x, jnp.float32), x)
