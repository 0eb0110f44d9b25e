"""Small functions that several methods share, on stacks and in NumPy."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_matrix as om
from optax_matrix.linalg.scale import matrix_norm, safe_divide as safe_divide

polar = om.linalg.polar_svd
norm = matrix_norm
svd = partial(jnp.linalg.svd, full_matrices=False)


def rows(x: jax.Array) -> jax.Array:
    """Norms of the rows."""
    return jnp.linalg.norm(x, axis=-1, keepdims=True)


def inner(x: jax.Array, y: jax.Array) -> jax.Array:
    """Inner products of matrices."""
    return jnp.sum(x * y, axis=(-2, -1), keepdims=True)


def spectral(f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """The kernel that changes singular values by a function, and no vectors."""

    def kernel(x: jax.Array) -> jax.Array:
        u, s, vt = svd(x)
        return (u * f(s)[..., None, :]) @ vt

    return kernel


def with_weights(f: Callable) -> optax.GradientTransformationExtraArgs:
    """The block of a function of updates and weights."""
    return optax.with_extra_args_support(optax.stateless_with_tree_map(f))


# In NumPy.


def average(kept: dict, name: str, x: np.ndarray, decay: float) -> np.ndarray:
    """The exponential average of what is called a name, with this value."""
    kept[name] = decay * kept.get(name, 0) + (1 - decay) * x
    return kept[name]


def count(kept: dict) -> int:
    """The number of this step, from one."""
    kept["count"] = kept.get("count", 0) + 1
    return kept["count"]


def polar64(x: np.ndarray) -> np.ndarray:
    """The polar factor."""
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return u @ vt


def spectral64(x: np.ndarray, f: Callable) -> np.ndarray:
    """A matrix with other singular values."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return (u * f(s)) @ vt


def power64(x: np.ndarray, power: float) -> np.ndarray:
    """A symmetric matrix to a power, on its range."""
    values, vectors = np.linalg.eigh(x)
    some = values > 1e-9 * values.max()
    return (vectors * np.where(some, np.where(some, values, 1) ** power, 0)) @ vectors.T


def rows64(x: np.ndarray) -> np.ndarray:
    """Norms of the rows."""
    return np.linalg.norm(x, axis=1, keepdims=True)


def identity(n: int, like: jax.Array) -> jax.Array:
    """Identity matrices for a stack."""
    return jnp.broadcast_to(jnp.eye(n, dtype=like.dtype), (*like.shape[:-2], n, n))
