"""Random numbers and the hash that matrices are told apart by."""

import jax
import numpy as np

from optax_matrix.linalg.random import hash_uint32


def test_the_hash_is_that_of_murmurhash3():
    """Published values of MurmurHash3: of no bytes it is this hash of the seed."""
    seeds = np.array([0, 1, 0xFFFFFFFF], np.uint32)
    want = np.array([0, 0x514E28B7, 0x81F16F39], np.uint32)
    np.testing.assert_array_equal(jax.jit(hash_uint32)(seeds), want)
