import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, strict

from optax_matrix.linalg import products


@pytest.mark.broad
@pytest.mark.parametrize("m", [1, 2, 5, 8], ids=lambda m: f"m{m}")
def test_blocked_symmetric_dot_is_the_product(m):
    x = jnp.asarray(gaussian(3, m, 7), jnp.float32)
    with strict():
        gram = products.blocked_symmetric_dot(x, x.mT)
        square = products.blocked_symmetric_dot(gram, gram)
    reference = np.asarray(x, np.float64) @ np.asarray(x.mT, np.float64)
    np.testing.assert_allclose(gram, reference, atol=1e-5)
    np.testing.assert_allclose(square, reference @ reference, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(gram, gram.mT)


def test_blocked_symmetric_dot_forms_three_of_four_blocks():
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32)

    def flops(f):
        cost = jax.jit(lambda x: f(x, x.mT)).lower(x).compile().cost_analysis()
        return cost["flops"]

    saved = flops(products.blocked_symmetric_dot) / flops(products.precise_dot)
    assert saved == pytest.approx(0.75, abs=0.01)


def test_products_of_bfloat16_accumulate_in_float32():
    # Each row sums 4096 times 1/4096: in bfloat16 the sum stalls at 2^-4.
    x = np.full((2, 4096), 2.0**-6, jnp.bfloat16)
    for product in (
        products.dot,
        products.precise_dot,
        products.blocked_symmetric_dot,
    ):
        gram = jax.jit(product)(x, x.T)
        assert gram.dtype == jnp.float32
        np.testing.assert_array_equal(gram, 1.0)
