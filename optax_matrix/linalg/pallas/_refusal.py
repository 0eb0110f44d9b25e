"""An error for platforms without a kernel, raised when a program is lowered for one."""

import functools
from typing import Any

import jax
from jaxtyping import Array


@jax.custom_jvp
def refuse(x: Array) -> Array:
    """Stand for a kernel that the platform does not have."""
    return _primitive().bind(x)


refuse.defjvp(lambda primals, tangents: (refuse(*primals), tangents[0]))


@functools.cache
def _primitive() -> Any:
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    refused = Primitive("platform_without_kernel")
    refused.def_impl(lambda x: jax.jit(refused.bind)(x))
    refused.def_abstract_eval(lambda x: x)
    mlir.register_lowering(refused, _lower)
    batching.primitive_batchers[refused] = lambda xs, axes: (refuse(*xs), axes[0])
    return refused


def _lower(ctx: Any, *_: Any) -> Any:
    platforms = ", ".join(ctx.module_context.platforms)
    raise ValueError(
        "`kernel` must be 'auto' or 'xla' on platforms without a kernel of our own, "
        f"got 'pallas' on {platforms}; only TPUs (in bfloat16 or float32) and Hopper "
        "GPUs (H100, H200; in 16 bits, with JAX 0.11) have one, so pass kernel='auto'."
    )
