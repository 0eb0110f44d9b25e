"""Matrix products, in the form that each platform runs fastest."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from optax_matrix.linalg._scale import work_dtype

Product = Callable[[Array, Array], Array]
Kernel = Callable[[Array, Product], Array]

# Time of five Newton-Schulz steps in float32 on two CPU cores, medians, measured
# side by side: against one batched product, one matrix at a time 0.82 and four 0.73
# (48 x 256 x 256), 0.72 and 0.71 (36 x 256 x 688), two in Gram form 0.54 (the latter);
# one at a time 0.97 (96 x 64 x 64) and 2.2 (144 x 16 x 16);
# `blocked_symmetric_dot` against a plain product 1.3 (m = 256), 0.92 (512), 0.86
# (1024), 0.80 (2048). Accelerators keep the batched plain form: their mirror pass
# through memory costs about what the saved products do.
_MIN_SIDE_IN_TURN = 64
_MIN_SIDE_BLOCKED = 512


def dot(x: Array, y: Array) -> Array:
    """Multiply, accumulating and returning at least float32."""
    return jnp.matmul(x, y, preferred_element_type=work_dtype(x.dtype))


def precise_dot(x: Array, y: Array) -> Array:
    """Multiply; float32 operands are not cut to a single bfloat16 pass."""
    return jnp.matmul(
        x,
        y,
        precision=jax.lax.Precision.HIGH,
        preferred_element_type=work_dtype(x.dtype),
    )


def full_dot(x: ArrayLike, y: ArrayLike) -> Array:
    """Multiply in the full precision of the operands, on every platform."""
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def times(x: Array, v: Array) -> Array:
    """Multiply matrices by vectors ``(..., n)``, in full precision."""
    return jnp.einsum("...mn,...n->...m", x, v, precision=jax.lax.Precision.HIGHEST)


def blocked_symmetric_dot(x: Array, y: Array) -> Array:
    """Multiply where the product is symmetric: one off-diagonal block is mirrored.

    Three of four block products are formed: a quarter of the work is saved.
    """
    h = x.shape[-2] // 2
    left, right = y[..., :h], y[..., h:]
    below = precise_dot(x[..., h:, :], left)
    top = [precise_dot(x[..., :h, :], left), below.mT]
    bottom = [below, precise_dot(x[..., h:, :], right)]
    rows = [jnp.concatenate(row, axis=-1) for row in (top, bottom)]
    return jnp.concatenate(rows, axis=-2)


def on_each_platform(
    kernel: Kernel, x: Array, symmetric_dot: Product, *, cpu_kernel: Kernel
) -> Array:
    """Apply ``kernel(x, symmetric_dot)`` to a stack as suits the platform.

    On CPU large matrices go a few at a time (they stay in cache) and with blocked
    symmetric products; elsewhere the whole stack goes at once.

    Args:
        kernel: A map from a stack to a stack of the same shape; its second argument
            multiplies where the product is symmetric.
        x: Matrices of shape ``(..., m, n)``.
        symmetric_dot: That product where the blocked one does not pay.
        cpu_kernel: The kernel for large matrices on CPU.

    Returns:
        The value of the kernel.
    """
    count, side = math.prod(x.shape[:-2]), min(x.shape[-2:])
    blocked = side >= _MIN_SIDE_BLOCKED
    # A loop over an axis that is sharded over an Explicit mesh is not possible.
    local = all(axis is None for axis in jax.typeof(x).sharding.spec)
    few = 1 if count % 2 else 2
    in_turn = count > few and side >= _MIN_SIDE_IN_TURN and local

    def whole(x: Array) -> Array:
        return kernel(x, symmetric_dot)

    def on_cpu(x: Array) -> Array:
        product = blocked_symmetric_dot if blocked else symmetric_dot
        if not in_turn:
            return cpu_kernel(x, product)
        # Turned here and not in the kernel, so that the stack turns as a whole.
        wide = x.mT if x.shape[-2] > x.shape[-1] else x
        chunks = wide.reshape(count // few, few, *wide.shape[-2:])
        out = jax.lax.map(lambda y: cpu_kernel(y, product), chunks).reshape(wide.shape)
        return out.mT if x.shape[-2] > x.shape[-1] else out

    if blocked or in_turn:
        return jax.lax.platform_dependent(x, cpu=on_cpu, default=whole)
    return whole(x)


def in_turn_on_cpu(
    kernel: Callable[..., tuple],
    *stacks: Any,
    in_place: int = 0,
    min_side: int = _MIN_SIDE_IN_TURN,
) -> tuple[Any, ...]:
    """Apply a function of stacks; large matrices go one by one on CPU.

    There each takes the iterations that it needs and stays in cache, and what it needs
    on the way exists for one matrix at a time.

    Args:
        kernel: A function of the stacks that acts on each matrix by itself. It returns
            a tuple of trees of arrays with the same leading axes.
        *stacks: Matrices of shape ``(..., m, n)``, then any trees of arrays with the
            same leading axes.
        in_place: How many of the first stacks may give their place in memory to as many
            first results, of their shapes and dtypes. What of such a stack is read
            should go into that result, or all of it is copied for every matrix.
        min_side: From which side on matrices are large.

    Returns:
        The value of the kernel.
    """
    batch, (m, n) = stacks[0].shape[:-2], stacks[0].shape[-2:]
    count = math.prod(batch)
    leaves = jax.tree.leaves(stacks)
    # A loop over an axis that is sharded over an Explicit mesh is not possible.
    local = all(axis is None for x in leaves for axis in jax.typeof(x).sharding.spec)
    if count < 2 or min(m, n) < min_side or not local:
        return kernel(*stacks)

    def on_cpu(*stacks: Any) -> Any:
        flat = lambda x: x.reshape(count, *x.shape[len(batch) :])
        stacks = jax.tree.map(flat, stacks)

        def one(places, part):
            i, *others = part
            results = kernel(*(x[i] for x in places), *others)
            put = lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, i, 0)
            return tuple(map(put, places, results)), results[in_place:]

        parts = (jnp.arange(count), *stacks[in_place:])
        places, rest = jax.lax.scan(one, stacks[:in_place], parts)
        whole = lambda x: x.reshape(*batch, *x.shape[1:])
        return jax.tree.map(whole, (*places, *rest))

    return jax.lax.platform_dependent(*stacks, cpu=on_cpu, default=kernel)
