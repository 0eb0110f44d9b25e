import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, strict

from optax_matrix.linalg._triangular import inverse_lower

EPS = float(np.finfo(np.float32).eps)


def factor(n, *batch):
    """Well-conditioned lower triangular matrices (condition number about 3)."""
    g = gaussian(*batch, n, n)
    return np.linalg.cholesky(g @ np.swapaxes(g, -1, -2) / n + np.eye(n))


@functools.lru_cache(None, typed=True)
def jitted():
    return jax.jit(inverse_lower)


# One block, a full one, one row more, and two levels with padding.
@pytest.mark.parametrize("n", [1, 5, 128, 129, 258])
def test_inverts(n):
    l = factor(n)
    with strict():
        x = np.asarray(jitted()(np.float32(l)), np.float64)
    assert x.shape == (n, n)
    np.testing.assert_allclose(x @ l, np.eye(n), atol=20 * EPS)
    np.testing.assert_array_equal(np.triu(x, 1), 0)


def test_a_batch_is_inverted_one_by_one():
    l = factor(130, 2, 3)
    x = np.asarray(jitted()(np.float32(l)), np.float64)
    np.testing.assert_allclose(x, np.linalg.inv(l), atol=20 * EPS)


@pytest.mark.parametrize("n", [129, 512])
def test_one_triangular_solve_of_at_most_128(n):
    x = jax.ShapeDtypeStruct((n, n), jnp.float32)
    lowered = jax.jit(inverse_lower).trace(x).lower(lowering_platforms=("tpu",))
    solves = re.findall(r"triangular_solve.*-> tensor<.*?(\d+)xf32>", lowered.as_text())
    assert len(solves) == 1
    assert int(solves[0]) <= 128


@pytest.mark.usefixtures("x64")
def test_float64_keeps_its_precision():
    l = factor(200)
    x = jitted()(l)
    assert x.dtype == np.float64
    np.testing.assert_allclose(x, np.linalg.inv(l), atol=1e-13)


@pytest.mark.broad
def test_padding_is_regular():
    # One row of padding; a singular one would leave NaN in intermediate values.
    with jax.debug_nans(True):
        inverse_lower(jnp.asarray(factor(129), jnp.float32)).block_until_ready()
