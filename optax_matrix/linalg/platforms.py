"""Run a kernel on a stack of matrices in the way that suits the platform.

Accelerators take the whole stack at once. On a CPU a few large matrices at a time are
faster, since they stay in cache, and need less memory.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from optax_matrix._arguments import check_dtype
from optax_matrix._mesh import vary_like
from optax_matrix._thresholds import Thresholds
from optax_matrix.linalg.devices import has_narrow_products
from optax_matrix.linalg.precision import current
from optax_matrix.linalg.products import Product, blocked_symmetric_dot
from optax_matrix.linalg.scale import work_dtype

Kernel = Callable[[Array, Product], Array]

# The thresholds come from five Newton-Schulz steps in float32 on two CPU cores
# (medians, measured side by side). Times relative to one product of the whole stack:
#   48 x 256 x 256: one matrix at a time 0.82, four at a time 0.73
#   36 x 256 x 688: one at a time 0.72, four 0.71, two in Gram form 0.54
#   96 x 64 x 64:   one at a time 0.97
#   144 x 16 x 16:  one at a time 2.2
# `blocked_symmetric_dot` relative to a plain product:
#   1.3 (m = 256), 0.92 (512), 0.86 (1024), 0.80 (2048)
# On accelerators the plain product of the whole stack stays: mirroring a block through
# memory costs about as much as the saved product.


def on_each_platform(
    kernel: Kernel, x: Array, symmetric_dot: Product, *, cpu_kernel: Kernel
) -> Array:
    """Apply ``kernel(x, symmetric_dot)`` to a stack in the way that suits the platform.

    On a CPU large matrices are processed one or two at a time by ``cpu_kernel``, so
    that they stay in cache, with blocked symmetric products. Elsewhere the kernel gets
    the whole stack at once.
    """
    count, side = math.prod(x.shape[:-2]), min(x.shape[-2:])
    blocked = side >= Thresholds.blocked_side
    few = 1 if count % 2 else 2
    large = side >= Thresholds.in_turn_side
    in_turn = count > few and large and _can_loop(x)

    def whole(x: Array) -> Array:
        return kernel(x, symmetric_dot)

    def on_cpu(x: Array) -> Array:
        product = blocked_symmetric_dot if blocked else symmetric_dot
        if not in_turn:
            return cpu_kernel(x, product)
        # The stack is transposed here as a whole, and not by the kernel piece by piece.
        wide = x.mT if x.shape[-2] > x.shape[-1] else x
        chunks = wide.reshape(count // few, few, *wide.shape[-2:])
        (out,) = _in_turn(lambda y: (cpu_kernel(y, product),), (chunks,))
        out = out.reshape(wide.shape)
        return out.mT if x.shape[-2] > x.shape[-1] else out

    if blocked or in_turn:
        return jax.lax.platform_dependent(x, cpu=on_cpu, default=whole)
    return whole(x)


def in_turn_on_cpu(
    kernel: Callable[..., tuple],
    *stacks: Any,
    in_place: int = 0,
    min_side: int | None = None,
) -> tuple[Any, ...]:
    """Apply a function to stacks; on a CPU, to one large matrix at a time.

    There each matrix takes only the iterations that it needs and stays in cache, and
    temporaries exist for one matrix at a time. The kernel treats every matrix
    independently and returns a tuple of trees with the leading axes of the first stack.
    The memory of the first ``in_place`` stacks is reused for as many results of the
    same shapes and dtypes; such a stack should be read only to compute the result that
    replaces it, or all of it is copied for every matrix.
    """
    batch, (m, n) = stacks[0].shape[:-2], stacks[0].shape[-2:]
    count = math.prod(batch)
    least = min_side or Thresholds.in_turn_side
    if count < 2 or min(m, n) < least or not _can_loop(stacks):
        return kernel(*stacks)

    def on_cpu(*stacks: Any) -> Any:
        flat = lambda x: x.reshape(count, *x.shape[len(batch) :])
        stacks = jax.tree.map(flat, stacks)
        results = _in_turn(kernel, stacks[:in_place], stacks[in_place:])
        whole = lambda x: x.reshape(*batch, *x.shape[1:])
        return jax.tree.map(whole, results)

    return jax.lax.platform_dependent(*stacks, cpu=on_cpu, default=kernel)


def dtype_of_factors(
    compute_dtype: DTypeLike | Literal["auto"] | None, kernel: str
) -> DTypeLike | Literal["auto"] | None:
    """``compute_dtype``, or the policy's; bfloat16 where a kernel is asked for."""
    compute_dtype = current().compute_dtype if compute_dtype is None else compute_dtype
    # `is`, since NumPy says that the dtype float64 equals None.
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
    return jax.lax.platform_dependent(x, cuda=narrow, tpu=narrow, default=wide)


def _in_turn(
    kernel: Callable[..., tuple], places: tuple[Array, ...], others: tuple = ()
) -> tuple[Any, ...]:
    """A function of one part of each array after the other.

    Its first results take the places of the parts that they are computed from.
    """

    def one(places: tuple[Array, ...], part: tuple) -> tuple:
        i, *rest = part
        results = kernel(*(x[i] for x in places), *rest)
        put = lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, i, 0)
        return tuple(map(put, places, results)), results[len(places) :]

    count = len(jax.tree.leaves((places, others))[0])
    parts = (jnp.arange(count), *others)
    places, rest = jax.lax.scan(one, vary_like(places, others), parts)
    return (*places, *rest)


def _can_loop(stacks: Any) -> bool:
    """Whether no axis is sharded over an Explicit mesh; JAX cannot loop over such."""
    specs = (jax.typeof(x).sharding.spec for x in jax.tree.leaves(stacks))
    return all(axis is None for spec in specs for axis in spec)
