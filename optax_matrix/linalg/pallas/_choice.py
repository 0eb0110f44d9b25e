"""Which stacks the kernels take, as far as a trace shows it."""

import math

import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg import devices
from optax_matrix.linalg.pallas import _gains
from optax_matrix.linalg.pallas._hopper import is_in_this_jax


def gains(x: Array, dtype: jnp.dtype) -> bool:
    """Whether the kernels gain time: as measured, on a Hopper GPU, in 16 bits.

    XLA cannot split a kernel among devices, so the stack must be known to lie on one.
    """
    short, long = sorted(x.shape[-2:])
    return (
        dtype.itemsize == 2
        and _gains.gains(math.prod(x.shape[:-2]), short, long)
        and devices.is_on_one_device(x)
        and devices.are_hopper(x)
        and is_in_this_jax()
    )


def check(x: Array, dtype: jnp.dtype) -> None:
    """Refuse what the kernels cannot do, before a program is compiled."""
    if dtype.itemsize != 2:
        raise ValueError(
            "`compute_dtype` must be bfloat16, float16 or None with kernel='pallas', "
            f"got {dtype}; pass kernel='xla' for this dtype."
        )
    if not is_in_this_jax():
        raise ValueError(
            "`kernel` must be 'auto' or 'xla' with this version of JAX, got 'pallas'; "
            "the kernels need the Mosaic GPU of JAX 0.11, so pass kernel='auto'."
        )
    other = devices.other_than_hopper(x)
    if other is not None:
        raise ValueError(
            "`kernel` must be 'auto' or 'xla' on CUDA devices without a kernel of our "
            f"own, got 'pallas' on {other}; only Hopper GPUs (H100, H200) have one, so "
            "pass kernel='auto'."
        )
