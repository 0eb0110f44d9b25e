"""Which stacks the kernels take, as far as a trace shows it."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg import devices
from optax_matrix.linalg.pallas import _gains, _hopper, _tpu


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
        and _hopper.is_in_this_jax()
    )


def check(x: Array, dtype: jnp.dtype) -> None:
    """Refuse what the kernels cannot do on known devices, before a program is compiled.

    Where no device is known to be a TPU or a GPU, the error is raised when a program is
    lowered for a platform without a kernel.
    """
    if devices.are_tpus(x):
        where, needs = "on TPUs", "a JAX with Pallas for TPUs"
        dtypes, is_there = _tpu.DTYPES, _tpu.is_in_this_jax()
    elif devices.are_hopper(x):
        where, needs = "on Hopper GPUs", "the Mosaic GPU of JAX 0.11"
        dtypes, is_there = _hopper.DTYPES, _hopper.is_in_this_jax()
    else:
        where, needs = "", "Pallas"
        dtypes, is_there = (*_tpu.DTYPES, *_hopper.DTYPES), True
    if dtype not in dtypes:
        names = ", ".join(dict.fromkeys(jnp.dtype(d).name for d in dtypes))
        raise ValueError(
            f"`compute_dtype` must be {names} or None with kernel='pallas'"
            f"{where and ' ' + where}, got {dtype}; pass kernel='xla' for this dtype."
        )
    mesh = jax.typeof(x).sharding.mesh
    if where == "on TPUs" and mesh.size > 1 and not devices.is_on_one_device(x):
        raise ValueError(
            "`x` must lie on one device with kernel='pallas', got a mesh of "
            f"{dict(mesh.shape)}; call it in `jax.shard_map`, "
            "in an optimizer pass placement=om.owners(...), or pass kernel='auto'."
        )
    if not is_there:
        raise ValueError(
            "`kernel` must be 'auto' or 'xla' with this version of JAX, got 'pallas'; "
            f"the kernels need {needs}, so pass kernel='auto'."
        )
    other = devices.without_kernels(x)
    if other is not None:
        raise ValueError(
            "`kernel` must be 'auto' or 'xla' on devices without a kernel of our own, "
            f"got 'pallas' on {other}; only Hopper GPUs (H100, H200) and TPUs from v4 "
            "have one, so pass kernel='auto'."
        )
