"""Newton-Schulz with symmetric products of our own, differentiable and batched."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from optax_matrix.linalg._quintic_steps import quintic_steps
from optax_matrix.linalg.coefficients import Quintic
from optax_matrix.linalg.pallas._hopper import gram, quadratic
from optax_matrix.linalg.products import dot


def newton_schulz(y: Array, rows: Sequence[Quintic], **options: Any) -> Array:
    """All steps on scaled wide matrices in half precision; only ``Z X`` is XLA's.

    Where it is differentiated, XLA computes all of it.
    """

    def step(y: Array, row: Array) -> tuple[Array, None]:
        z = quadratic(gram(y, **options), row, **options)
        return dot(z, y).astype(y.dtype), None

    @custom_vmap
    def stacked(y: Array) -> Array:
        return jax.lax.scan(step, y, jnp.asarray(rows, jnp.float32), unroll=2)[0]

    # A kernel takes any number of matrices, so mapped axes join the others.
    @stacked.def_vmap
    def _(_: int, batched: list[bool], y: Array) -> tuple[Array, bool]:
        return stacked(y), batched[0]

    run = jax.custom_jvp(stacked)
    by_xla = lambda y: quintic_steps(y, rows, dot)
    run.defjvp(lambda primals, tangents: jax.jvp(by_xla, primals, tangents))
    return run(y)
