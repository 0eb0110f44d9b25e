"""An error for platforms without a kernel, raised when a program is lowered for one."""

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array

_REFUSED = Primitive("platform_without_kernel")


def refuse(x: Array) -> Array:
    """Stand for a kernel that the platform does not have."""
    return _REFUSED.bind(x)


def _lower(ctx: Any, *_: Any) -> Any:
    platforms = ", ".join(ctx.module_context.platforms)
    raise ValueError(
        "`kernel` must be 'auto' or 'xla' on platforms without a kernel of our own, "
        f"got 'pallas' on {platforms}; only Hopper GPUs (H100, H200) have one, so pass "
        "kernel='auto'."
    )


_REFUSED.def_impl(lambda x: jax.jit(_REFUSED.bind)(x))
_REFUSED.def_abstract_eval(lambda x: x)
mlir.register_lowering(_REFUSED, _lower)
batching.primitive_batchers[_REFUSED] = lambda xs, axes: (refuse(*xs), axes[0])
