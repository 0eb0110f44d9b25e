"""Newton-Schulz on TPUs by kernels of our own, compiled for them but never timed.

`optax_matrix` has no kernels that no device has timed, so these are here:
`newton_schulz` is a polar function for recipes, as in

    om.muon(1e-3, polar=tpu.newton_schulz, placement=om.owners("fsdp"))

All steps of a matrix run in fast memory (``_vmem``) where it fits, else tile by tile
(``_hbm``). Matrices must lie on one TPU, or run inside of `jax.shard_map`, as with
owners. Derivatives are the compiler's.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from examples.study.tpu import _hbm, _vmem
from optax_matrix.linalg import JORDAN, pallas
from optax_matrix.linalg.coefficients import rows_for
from optax_matrix.linalg.quintic_steps import first_iterate

DTYPES = (jnp.bfloat16, jnp.float32)
# MiB of fast memory of a core by names of TPUs; of v5p and v7, 64. On v2 and v3, which
# have 16, Pallas has no products of bfloat16.
_VMEM = {"TPU (v5 lite|v5e|v6)": 128, "TPU v4": 16, "TPU v[23]": 0}


def newton_schulz(
    x: jax.Array,
    *,
    coefficients: Sequence[Sequence[float]] = JORDAN,
    steps: int = 5,
    eps: ArrayLike = 1e-7,
    compute_dtype: DTypeLike = jnp.bfloat16,
    interpret: Any = False,
) -> jax.Array:
    """`linalg.newton_schulz` by kernels for TPUs, of matrices ``(..., m, n)``.

    Args:
        x: The matrices.
        coefficients: Rows ``(a, b, c)``, one per step; the last one is repeated.
        steps: Number of steps.
        eps: Added to the Frobenius norm, relative to the largest entry.
        compute_dtype: Dtype of the factors, bfloat16 or float32.
        interpret: Whether to interpret the kernels, as where there is no TPU.

    Raises:
        ValueError: If there is no kernel for ``compute_dtype`` or on the devices.
    """
    dtype = jnp.dtype(compute_dtype)
    if dtype not in DTYPES:
        raise ValueError(
            f"`compute_dtype` must be bfloat16 or float32, got {dtype}; the kernels "
            "have no other products."
        )
    memory = fast_memory(x)
    if not memory:
        raise ValueError("`x` must be on TPUs from v4, got older ones without kernels.")
    y, transposed = first_iterate(x, eps, dtype, False)
    form = in_kernels(memory, interpret)
    y = pallas.newton_schulz(y, tuple(rows_for(coefficients, steps)), form)
    return (y.mT if transposed else y).astype(x.dtype)


def in_kernels(vmem: int, interpret: Any = False) -> pallas.Steps:
    """All steps, on devices with so many bytes of fast memory."""
    options = {"vmem": vmem, "interpret": interpret}
    tiled = pallas.by_products(
        functools.partial(_hbm.gram, **options),
        functools.partial(_hbm.quadratic, **options),
    )

    def run(y: jax.Array, rows: jax.Array) -> jax.Array:
        *_, m, n = y.shape
        fits = _vmem.fits(m, n, y.dtype, vmem)
        with jax.enable_x64(False):  # Indices in kernels have 32 bits.
            return _vmem.iterate(y, rows, **options) if fits else tiled(y, rows)

    return run


def fast_memory(x: jax.Array) -> int:
    """Bytes of fast memory (VMEM) of a core, the least of the devices of an array.

    Where no device is known to be a TPU, it is the least since v5.
    """
    mesh = jax.typeof(x).sharding.mesh
    known = getattr(mesh, "abstract_device", None)
    found = [known] if known is not None else jax.local_devices()
    return min(memory_of(d.device_kind) for d in found) * 2**20


def memory_of(kind: str) -> int:
    """MiB of fast memory of a device by its name."""
    return next((mib for name, mib in _VMEM.items() if re.match(name, kind)), 64)
