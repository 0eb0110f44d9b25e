r"""Random matrices ``(out, in)``, with the signature of `jax.nn.initializers`.

Each row belongs to an output neuron. POET preserves the singular values of the initial
weights, so the initializer determines them for the whole training (Sec. 4 and
Appendix C): with :math:`\lambda` = out / in, those of normalized rows lie between
:math:`|1 - \sqrt\lambda|` and :math:`1 + \sqrt\lambda`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from optax_matrix.linalg import qr_householder

Initializer = Callable[[Any, tuple[int, int], Any], Array]
"""``initializer(key, shape, dtype)``, as in `jax.nn.initializers`."""


def standard_gaussian(
    key: Any, shape: tuple[int, int], dtype: DTypeLike = jnp.float32
) -> Array:
    """Draws normal entries of standard deviation 0.02, whatever the shape.

    Args:
        key: Random key.
        shape: ``(out, in)``.
        dtype: Dtype of the result.

    Returns:
        A matrix.
    """
    return (0.02 * _normal(key, shape)).astype(dtype)


def xavier_gaussian(
    key: Any, shape: tuple[int, int], dtype: DTypeLike = jnp.float32
) -> Array:
    """Draws normal entries of variance 2 / (out + in).

    Args:
        key: Random key.
        shape: ``(out, in)``.
        dtype: Dtype of the result.

    Returns:
        A matrix.
    """
    return (math.sqrt(2 / sum(shape)) * _normal(key, shape)).astype(dtype)


def uniform_spectrum(
    key: Any, shape: tuple[int, int], dtype: DTypeLike = jnp.float32
) -> Array:
    """Draws a matrix from the uniform distribution over those of singular values one.

    Args:
        key: Random key.
        shape: ``(out, in)``.
        dtype: Dtype of the result.

    Returns:
        A matrix with orthonormal rows or columns, whichever are fewer.

    References:
        POET, Sec. 4. Deviation: a Gaussian matrix is orthonormalized by QR; the
        singular value decomposition gives the same distribution.
    """
    x = _normal(key, shape)
    wide = shape[0] < shape[1]
    q = qr_householder(x.mT if wide else x)
    return (q.mT if wide else q).astype(dtype)


def normalized_gaussian(
    key: Any, shape: tuple[int, int], dtype: DTypeLike = jnp.float32
) -> Array:
    """Draws rows uniformly from the unit sphere, which is POET's default.

    Args:
        key: Random key.
        shape: ``(out, in)``.
        dtype: Dtype of the result.

    Returns:
        A matrix.
    """
    x = _normal(key, shape)
    return (x / jnp.linalg.norm(x, axis=-1, keepdims=True)).astype(dtype)


def _normal(key: Any, shape: tuple[int, int]) -> Array:
    return jax.random.normal(key, shape, jnp.float32)
