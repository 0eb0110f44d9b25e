"""What of a rotated matrix is rounding noise, by the bound restated in NumPy."""

from functools import partial

import jax
import numpy as np
import pytest
from _matrices import gaussian

from optax_matrix.transforms.rotation._frames import without_noise
from optax_matrix.transforms.sides import Pair


def kept(x, source, *, cols=None):
    """What is left; the bound depends on whether sides rotate, not on how."""
    of = partial(without_noise, rotation=Pair(np.eye(x.shape[-2]), cols), source=source)
    return np.asarray(jax.jit(of)(x))


def bound(source, norms):
    """Of the longer side n and the norms: 4 eps sqrt(n) times the norms."""
    eps, side = np.finfo(np.float32).eps, max(source.shape)
    return 4 * eps * np.float32(np.sqrt(side)) * norms


@pytest.mark.parametrize("shape", [(20, 24), (24, 20), (4, 6)])
def test_rows_below_the_bound_of_each_column_are_zero(shape):
    """Beside an entry above it a small entry stays, but not in a small matrix."""
    source = np.float32(gaussian(*shape, seed=7))
    limits = bound(source, np.linalg.norm(source, axis=0))
    x = np.float32(0.95 * limits * np.ones(shape))
    x[1, 2] = 1.05 * limits[2]
    want = np.zeros_like(x)
    row = slice(None) if max(shape) > 16 else 2
    want[1, row] = x[1, row]
    np.testing.assert_array_equal(kept(x, source), want)


def test_rows_and_columns_below_one_bound_are_zero_if_both_sides_rotate():
    source = np.float32(gaussian(20, 24, seed=7))
    norms = [np.linalg.norm(source, axis=axis).max() for axis in (0, 1)]
    limit = bound(source, max(norms))
    x = np.float32(0.95 * limit * np.ones(source.shape))
    x[1, 2] = x[5, 3] = 1.05 * limit
    want = np.zeros_like(x)
    want[np.ix_([1, 5], [2, 3])] = x[np.ix_([1, 5], [2, 3])]
    np.testing.assert_array_equal(kept(x, source, cols=np.eye(24)), want)
