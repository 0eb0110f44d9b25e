"""The steps of Newton-Schulz by plain products."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg.coefficients import Quintic
from optax_matrix.linalg.products import Product, dot
from optax_matrix.linalg.scale import work_dtype


def quintic_steps(y: Array, rows: Sequence[Quintic], symmetric_dot: Product) -> Array:
    """Apply a quintic for each row to wide scaled matrices, in their dtype."""
    dtype = y.dtype

    def step(y: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        gram = symmetric_dot(y, y.mT)
        narrow = gram.astype(dtype)
        z = (b * gram + c * symmetric_dot(narrow, narrow)).astype(dtype)
        return (a * y.astype(a.dtype) + dot(z, y)).astype(dtype), None

    # A loop, since compilers would compile every unrolled step. That of TPUs copies the
    # matrices in each round, so that it gets two steps in a round.
    table = jnp.asarray(rows, work_dtype(dtype))
    loop = lambda y, unroll=1: jax.lax.scan(step, y, table, unroll=unroll)[0]
    in_pairs = functools.partial(loop, unroll=2)
    return jax.lax.platform_dependent(y, tpu=in_pairs, default=loop)
