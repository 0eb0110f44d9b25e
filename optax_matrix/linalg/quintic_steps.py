"""Newton-Schulz: what it starts from, its steps, and the forms of both.

The dtype of the factors and the way through a stack depend on the platform, for every
kernel that takes these steps.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array

from optax_matrix._arguments import check_dtype
from optax_matrix._platforms import by_platform, in_turn, is_large_stack
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.coefficients import Quintic
from optax_matrix.linalg.devices import has_narrow_products
from optax_matrix.linalg.precision import current
from optax_matrix.linalg.products import (
    Product,
    blocked_symmetric_dot,
    dot,
    precise_dot,
    rounded,
)
from optax_matrix.linalg.scale import (
    safe_divide,
    safe_root,
    wide_unit_norm,
    work_dtype,
)

Kernel = Callable[[Array, Product], Array]


def first_iterate(
    x: Array, eps: ArrayLike, dtype: DTypeLike, aol: bool
) -> tuple[Array, bool]:
    """The wide matrix that the first step gets, and whether it is transposed."""
    if not aol:
        return wide_unit_norm(x, eps, dtype)
    y, transposed = wide_unit_norm(x, eps, work_dtype(x.dtype))
    sums = jnp.sum(jnp.abs(precise_dot(y, y.mT)), axis=-1, keepdims=True)
    return safe_divide(y, safe_root(sums)).astype(dtype), transposed


def quintic_steps(y: Array, rows: Sequence[Quintic], symmetric_dot: Product) -> Array:
    """Apply a quintic for each row to wide scaled matrices, in their dtype.

    In 16 bits ``a X + Z X`` is computed as ``(a I + Z) X``. The two terms nearly
    cancel, so that rounding their sum once halves the error, and no copy of X in
    float32 is written.
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

    # A loop, since unrolled steps would all be compiled. With two steps in a round, X
    # moves to another place and back and need not be copied; on TPUs also in float32.
    table = jnp.asarray(rows, work_dtype(dtype))
    run = lambda y, step, unroll: jax.lax.scan(step, y, table, unroll=unroll)[0]
    if dtype.itemsize == 2:
        return run(y, narrow_step, 2)
    once, twice = (partial(run, step=step, unroll=n) for n in (1, 2))
    return by_platform(once, y, tpu=twice)


# The forms. What the factors are rounded to:


def dtype_of_factors(
    compute_dtype: DTypeLike | Literal["auto"] | None, kernel: str
) -> DTypeLike | Literal["auto"] | None:
    """``compute_dtype``, or the policy's; bfloat16 where a kernel is asked for."""
    compute_dtype = current().compute_dtype if compute_dtype is None else compute_dtype
    # `is`, since in NumPy the dtype float64 equals None.
    is_open = compute_dtype is None or compute_dtype == "auto"
    if not is_open:
        check_dtype("compute_dtype", compute_dtype)
    return jnp.bfloat16 if kernel == "pallas" and is_open else compute_dtype


def with_narrow_factors(kernel: Callable[..., Array], x: Array) -> Array:
    """The value of ``kernel(x, dtype)`` with factors of the platform's dtype.

    That is bfloat16 on TPUs and on CUDA devices from compute capability 8.0, unless x
    is wider than float32, and that of x, but at least float32, elsewhere.
    """
    wide = lambda x: kernel(x, work_dtype(x.dtype))
    if not has_narrow_products(x) or jnp.finfo(x.dtype).bits > 32:
        return wide(x)
    narrow = lambda x: kernel(x, jnp.dtype(jnp.bfloat16))
    return by_platform(wide, x, cuda=narrow, tpu=narrow)


# How a CPU takes a stack. Times of five Newton-Schulz steps in float32 on two CPU cores
# (medians, measured side by side), relative to one product of the whole stack:
#   48 x 256 x 256: one matrix at a time 0.82, four at a time 0.73
#   36 x 256 x 688: one at a time 0.72, four 0.71, two in Gram form 0.54
#   96 x 64 x 64:   one at a time 0.97
#   144 x 16 x 16:  one at a time 2.2
# `blocked_symmetric_dot` relative to a plain product:
#   1.3 (m = 256), 0.92 (512), 0.86 (1024), 0.80 (2048)
# On accelerators the plain product of the whole stack stays: mirroring a block through
# memory costs about as much as the saved product.


def on_stacks(
    kernel: Kernel, x: Array, symmetric_dot: Product, *, cpu_kernel: Kernel
) -> Array:
    """Apply ``kernel(x, symmetric_dot)`` to a stack.

    On a CPU ``cpu_kernel`` takes large matrices one or two at a time, so that they stay
    in cache, with blocked symmetric products.
    """
    count, side = math.prod(x.shape[:-2]), min(x.shape[-2:])
    blocked = side >= Thresholds.blocked_side
    few = 1 if count % 2 else 2
    loops = count > few and is_large_stack(x)

    def on_cpu(x: Array) -> Array:
        product = blocked_symmetric_dot if blocked else symmetric_dot
        if not loops:
            return cpu_kernel(x, product)
        # The stack is transposed here as a whole, and not by the kernel piece by piece.
        wide = x.mT if x.shape[-2] > x.shape[-1] else x
        each = lambda y: (cpu_kernel(y, product),)
        (out,) = in_turn(each, in_place=1, at_a_time=few)(wide)
        return out.mT if x.shape[-2] > x.shape[-1] else out

    whole = lambda x: kernel(x, symmetric_dot)
    return by_platform(whole, x, cpu=on_cpu if blocked or loops else None)
