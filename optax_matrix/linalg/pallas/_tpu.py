"""Newton-Schulz on TPUs: in fast memory where a matrix fits, else tile by tile."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix.linalg.pallas import _hbm, _vmem
from optax_matrix.linalg.pallas._iteration import Steps, by_products

DTYPES = (jnp.bfloat16, jnp.float32)


@functools.cache
def is_in_this_jax() -> bool:
    """Whether JAX has what the kernels are written with."""
    try:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import tpu as pltpu
    except ImportError:
        return False
    names = ("CompilerParams", "SemaphoreType", "make_async_copy", "SMEM", "VMEM")
    known = [hasattr(pltpu, name) for name in names]
    known += [hasattr(pl, name) for name in ("Buffered", "loop")]
    return all(known) and hasattr(jax, "enable_x64")


def steps(vmem: int, interpret: Any = False) -> Steps:
    """All steps, on devices with so many bytes of fast memory."""
    options = {"vmem": vmem, "interpret": interpret}
    tiled = by_products(
        functools.partial(_hbm.gram, **options),
        functools.partial(_hbm.quadratic, **options),
    )

    def run(y: Array, rows: Array) -> Array:
        *_, m, n = y.shape
        fits = _vmem.fits(m, n, y.dtype, vmem)
        with jax.enable_x64(False):  # Indices in kernels have 32 bits.
            return _vmem.iterate(y, rows, **options) if fits else tiled(y, rows)

    return run
