"""The steps of Newton-Schulz by plain products."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg.coefficients import Quintic
from optax_matrix.linalg.products import Product, dot, rounded
from optax_matrix.linalg.scale import work_dtype


def quintic_steps(y: Array, rows: Sequence[Quintic], symmetric_dot: Product) -> Array:
    """Apply a quintic for each row to wide scaled matrices, in their dtype.

    In 16 bits ``a X + Z X`` is formed as ``(a I + Z) X``. The two terms nearly cancel,
    so that rounding their sum once halves the error, and no copy of X in float32 is
    written.
    """
    dtype = y.dtype

    def step(y: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        gram = symmetric_dot(y, y.mT)
        narrow = gram.astype(dtype)
        z = (b * gram + c * symmetric_dot(narrow, narrow)).astype(dtype)
        return (a * y.astype(a.dtype) + dot(z, y)).astype(dtype), None

    def narrow_step(y: Array, row: Array) -> tuple[Array, None]:
        a, b, c = row
        gram = rounded(symmetric_dot)(y, y.mT)
        z = b * gram.astype(a.dtype) + c * symmetric_dot(gram, gram)
        one = jnp.broadcast_to(jnp.eye(gram.shape[-1], dtype=a.dtype), gram.shape)
        return rounded(dot)((a * one + z).astype(dtype), y), None

    # A loop, since compilers would compile every unrolled step. Two steps in a round
    # move X to another place and back, so that it is not copied; on TPUs that is so
    # also in float32.
    table = jnp.asarray(rows, work_dtype(dtype))
    run = lambda y, step, unroll: jax.lax.scan(step, y, table, unroll=unroll)[0]
    if dtype.itemsize == 2:
        return run(y, narrow_step, 2)
    once, twice = (partial(run, step=step, unroll=n) for n in (1, 2))
    return jax.lax.platform_dependent(y, tpu=twice, default=once)
