"""Decompositions that cannot deadlock JAX's CPU backend.

JAX 0.10 distributes a batch of decompositions over the threads that run the program and
waits for the results on one of these threads. If as many batches run at a time as there
are threads, all of them wait forever. So on a CPU the functions below decompose the
matrices of a batch one after another, which takes no longer.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix._platforms import by_platform, in_turn


def _one_by_one_on_cpu(decompose: Callable[..., Any]) -> Callable[..., Any]:
    @functools.partial(jax.jit, inline=True)  # Traced once for the same shapes.
    @functools.wraps(decompose)
    def run(*xs: Array) -> Any:
        is_stack = xs[0].ndim > 2
        return by_platform(decompose, *xs, cpu=in_turn(decompose) if is_stack else None)

    return run


@_one_by_one_on_cpu
def qr(x: Array) -> tuple[Array, Array]:
    """Reduced QR decomposition: orthonormal columns and an upper triangular factor."""
    q, r = jnp.linalg.qr(x)
    return q, r


@_one_by_one_on_cpu
def svd(x: Array) -> tuple[Array, Array, Array]:
    """Reduced singular value decomposition: U, descending values, V transposed."""
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    return u, s, vt


@_one_by_one_on_cpu
def singular_values(x: Array) -> Array:
    """Descending singular values without the singular vectors."""
    return jnp.linalg.svd(x, compute_uv=False)


@_one_by_one_on_cpu
def eigh(x: Array) -> tuple[Array, Array]:
    """Ascending eigenvalues, and eigenvectors; only the lower triangle is read."""
    w, v = jnp.linalg.eigh(x, symmetrize_input=False)
    return w, v


@_one_by_one_on_cpu
def cholesky(x: Array) -> Array:
    """Lower Cholesky factor, NaN if there is none; only the lower triangle is read."""
    return jnp.linalg.cholesky(x, symmetrize_input=False)


@_one_by_one_on_cpu
def solve(a: Array, b: Array) -> Array:
    """The solution of ``a x = b`` for square ``a``."""
    return jnp.linalg.solve(a, b)


def solve_lower(l: Array, b: Array, *, transpose: bool = False) -> Array:
    """The solution of ``l x = b``, or of ``l.mT x = b``, for lower triangular ``l``."""
    return _solve_transposed(l, b) if transpose else _solve(l, b)


@_one_by_one_on_cpu
def _solve(l: Array, b: Array) -> Array:
    return jax.lax.linalg.triangular_solve(l, b, left_side=True, lower=True)


@_one_by_one_on_cpu
def _solve_transposed(l: Array, b: Array) -> Array:
    return jax.lax.linalg.triangular_solve(
        l, b, left_side=True, lower=True, transpose_a=True
    )
