"""A stack cut into equal parts, by one kernel of XLA's CPU compiler for all of them."""

import functools

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from optax_matrix._mesh import own_mesh
from optax_matrix._platforms import by_platform

_FEW = 4  # So many slices compile as fast as the conditional.


def parts(stack: Array, size: int) -> list[Array]:
    """``[stack[:size], stack[size : 2 * size], ...]``.

    For a CPU, XLA compiles each slice with a constant offset into a kernel of its own,
    together with the elementwise operations after it: 14 ms each, which was most of the
    compile time of models with many layers. If the offsets are data, equal slices share
    a kernel. So they come out of a conditional whose result XLA cannot fold. Its
    predicate reads the stack, so `jax.linear_transpose` rejects this function;
    derivatives are linear, because of ``stop_gradient``.
    """
    offsets = range(0, len(stack), size)
    traced = isinstance(stack, jax.core.Tracer) and own_mesh(stack) is None
    is_float = jnp.issubdtype(stack.dtype, jnp.floating)
    few = len(offsets) <= _FEW
    if few or not stack.size or not traced or not is_float:
        return _at_constants(stack, size)
    cut = functools.partial(_at_data, size=size)
    constant = functools.partial(_at_constants, size=size)
    return by_platform(constant, stack, cpu=cut)


def _at_constants(stack: Array, size: int) -> list[Array]:
    return [stack[i : i + size] for i in range(0, len(stack), size)]


def _at_data(stack: Array, size: int) -> list[Array]:
    first = lax.slice(stack, [0] * stack.ndim, [1] * stack.ndim).reshape(())
    ours = lambda: [jnp.int32(i) for i in range(0, len(stack), size)]
    never = lambda: [jnp.int32(0) for _ in range(0, len(stack), size)]
    offsets = lax.cond(_false(lax.stop_gradient(first)), never, ours)
    return [lax.dynamic_slice_in_dim(stack, i, size) for i in offsets]


@jax.custom_batching.custom_vmap
def _false(x: Array) -> Array:
    """False for any number, as the product of two successive integers is even."""
    n = lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    return n * (n + 1) % 2 == 1


@_false.def_vmap
def _false_for_all_runs(axis_size: int, in_batched: list, x: Array):
    """One conditional under `jax.vmap`, which otherwise computes both branches."""
    del axis_size, in_batched
    return _false(lax.index_in_dim(x, 0, keepdims=False)), False
