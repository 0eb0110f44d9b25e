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
    x = jnp.asarray(gaussian(3, 4, 5), dtype)
    ulp = jnp.nextafter(x[1, 2, 3], jnp.asarray(9, dtype))
    other = x.at[1, 2, 3].set(ulp)
    changed = fingerprint(x) != fingerprint(other)
    assert fingerprint(x).dtype == jnp.uint32
    np.testing.assert_array_equal(changed, [False, True, False])
    # Exchanged entries have the same sum of bits, but not the same places.
    swapped = x.at[0].set(x[0, :, ::-1])
    assert fingerprint(swapped)[0] != fingerprint(x)[0]


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_fingerprint_sees_all_of_a_float64():
    x = jnp.asarray(gaussian(2, 3, 3))
    other = x.at[1, 0, 0].set(jnp.nextafter(x[1, 0, 0], 9.0))
    changed = fingerprint(x) != fingerprint(other)
    np.testing.assert_array_equal(changed, [False, True])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("update_dtype", [None, jnp.bfloat16])
def test_the_foreseen_parameters_are_those_of_optax(dtype, update_dtype):
    w = jnp.asarray(gaussian(2, 40, 30), dtype)
    target = jnp.asarray(gaussian(2, 40, 30, seed=1), jnp.float32) * 0.1
    target = target + w.astype(jnp.float32)
    target = target.at[0].set(1e-3 * target[0])  # Far below W: sums are not exact.
    update, foreseen = jax.jit(update_towards, static_argnums=2)(
        target, w, update_dtype
    )
    if update_dtype is not None and dtype == jnp.float32:
        on_the_way = update.astype(update_dtype).astype(dtype)
        np.testing.assert_array_equal(on_the_way, update)
    applied = optax.apply_updates({"w": w}, {"w": update})["w"]
    assert foreseen.dtype == update.dtype == dtype
    np.testing.assert_array_equal(applied, foreseen)
    error = jnp.abs(applied.astype(jnp.float32) - target)
    # An ulp of W, and one of the update.
    coarsest = jnp.finfo(update_dtype or dtype).eps
    size = jnp.abs(w.astype(jnp.float32)) + jnp.abs(target)
    assert bool((error <= coarsest * size + 1e-6).all())


def test_rounded_rounds_as_a_cast_does():
    x = jnp.asarray(gaussian(50, 50), jnp.float32)
    x = x.at[0].multiply(1e-5)  # Subnormal in float16.
    for dtype in (jnp.bfloat16, jnp.float16):
        want = np.asarray(x.astype(dtype)).astype(np.float32)
        got = jax.jit(rounded, static_argnums=1)(x, dtype)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(rounded(x, jnp.float32), x)
