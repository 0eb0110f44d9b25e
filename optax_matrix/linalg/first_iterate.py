"""What a Newton-Schulz iteration starts from."""

import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from optax_matrix.linalg.products import precise_dot
from optax_matrix.linalg.scale import (
    safe_divide,
    safe_root,
    wide_unit_norm,
    work_dtype,
)


def first_iterate(
    x: Array, eps: ArrayLike, dtype: DTypeLike, aol: bool
) -> tuple[Array, bool]:
    """The wide matrix that the first step gets, and whether it is transposed."""
    if not aol:
        return wide_unit_norm(x, eps, dtype)
    y, transposed = wide_unit_norm(x, eps, work_dtype(x.dtype))
    sums = jnp.sum(jnp.abs(precise_dot(y, y.mT)), axis=-1, keepdims=True)
    return safe_divide(y, safe_root(sums)).astype(dtype), transposed
