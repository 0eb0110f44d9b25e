"""Which stacks the kernels take, as far as a trace shows it, and what they refuse."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg import devices
from optax_matrix.linalg.pallas import _hopper
from optax_matrix.linalg.pallas._hopper import DEPTH, TILE

# What the kernels gain over XLA. Five steps of Newton-Schulz in bfloat16 on an NVIDIA
# H200 with JAX 0.11.2: median milliseconds by XLA and with the kernels, by (matrices,
# short side, long side). In all but the last one, both still wrote ``a X + Z X`` as a
# kernel of its own.
MEASURED = {
    (48, 768, 768): (2.16, 1.46),
    (36, 768, 3072): (3.82, 3.13),
    (64, 1024, 1024): (5.52, 3.58),
    (48, 1024, 4096): (10.30, 8.15),
    (4, 4096, 4096): (13.10, 9.08),
}


def gains(x: Array, dtype: jnp.dtype) -> bool:
    """Whether the kernels gain time: as measured, on a Hopper GPU, in 16 bits.

    XLA cannot split a kernel among devices, so the stack must be known to lie on one.
    """
    short, long = sorted(x.shape[-2:])
    return (
        dtype.itemsize == 2
        and is_as_measured(math.prod(x.shape[:-2]), short, long)
        and devices.is_on_one_device(x)
        and devices.are_hopper(x)
        and _hopper.is_in_this_jax()
    )


def is_as_measured(count: int, short: int, long: int) -> bool:
    """Whether a stack is in the range of what was measured.

    That is: no smaller matrices, no less work, and whole tiles, so that nothing is
    padded.
    """
    whole = short % TILE == 0 and long % DEPTH == 0
    enough = _lower_tiles(count, short) >= _LEAST_TILES
    return whole and enough and short >= _LEAST_SIDE


def _lower_tiles(count: int, side: int) -> int:
    """Tiles on and below the diagonals, which the processors share."""
    tiles = -(-side // TILE)
    return count * tiles * (tiles + 1) // 2


_LEAST_SIDE = min(side for _, side, _ in MEASURED)
_LEAST_TILES = min(_lower_tiles(count, side) for count, side, _ in MEASURED)


def check(x: Array, dtype: jnp.dtype) -> None:
    """Refuse what the kernels cannot do on known devices, before a program is compiled.

    Where no device is known to lack them, the error is raised when a program is lowered
    for a platform without a kernel.
    """
    if dtype not in _hopper.DTYPES:
        names = ", ".join(jnp.dtype(d).name for d in _hopper.DTYPES)
        raise ValueError(
            f"`compute_dtype` must be {names} or None with kernel='pallas', got "
            f"{dtype}; pass kernel='xla' for this dtype."
        )
    if devices.are_hopper(x) and not _hopper.is_in_this_jax():
        raise ValueError(
            "`kernel` must be 'auto' or 'xla' with this version of JAX, got 'pallas'; "
            "the kernels need the Mosaic GPU of JAX 0.11, so pass kernel='auto'."
        )
    other = devices.without_kernels(x)
    if other is not None:
        raise ValueError(
            "`kernel` must be 'auto' or 'xla' on devices without a kernel of our own, "
            f"got 'pallas' on {other}; only Hopper GPUs (H100, H200) have one, so pass "
            "kernel='auto'."
        )


@jax.custom_jvp
def refuse(x: Array) -> Array:
    """Raise when a program is lowered for a platform without a kernel."""
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
        f"got 'pallas' on {platforms}; only Hopper GPUs (H100, H200; in 16 bits, with "
        "JAX 0.11) have one, so pass kernel='auto'."
    )
