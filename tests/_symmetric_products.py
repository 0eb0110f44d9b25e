"""What the symmetric products of our own kernels should be."""

import jax.numpy as jnp

from optax_matrix.linalg.products import dot

ROW = (3.44, -4.775, 2.03)


def symmetric_products(gram, quadratic, x):
    """Pairs of a product by a kernel and in float32: ``x x'``, then the polynomial."""
    plain = dot(x, x.mT)
    narrow = plain.astype(x.dtype)
    a, b, c = ROW
    expected = b * narrow.astype(jnp.float32) + c * dot(narrow, narrow)
    expected += a * jnp.eye(x.shape[-2])
    return (gram(x), plain), (quadratic(narrow, jnp.array(ROW)), expected)
