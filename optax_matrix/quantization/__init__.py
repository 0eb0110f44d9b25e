"""Optimizers whose moments are stored in eight bits.

Moments can take one byte per number (block-wise dynamic
quantization, Dettmers et al. 2022; blocks of 256 that stay inside a matrix; those of
matrices of fewer than 4096 numbers stay as they are). `quantized` is a placement, so
every recipe takes it, and checkpoints, `state_specs` and the sharded step work on the
codes. `adamw_8bit` is AdamW; `quantize_state` does the same for any optimizer of optax.

>>> import jax, jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> tx = om.adamw_8bit(1e-3)  # The same as:
>>> tx = om.quantize_state(optax.adamw(1e-3))
>>> tx = om.muon(1e-3, placement=om.quantized(), other=om.adamw_8bit(1e-3))
>>> shapes = {"kernel": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
>>> fields = om.diagnostics.state_bytes(tx, shapes).fields
>>> [f.dtype.name for f in fields if f.field == "mu"]
['uint8']
>>> placement = om.quantized(om.owners(("fsdp", "tp")))  # Where the matrices live.
"""

from optax_matrix.quantization._adamw_8bit import adamw_8bit
from optax_matrix.quantization._quantized import quantized

__all__ = ["adamw_8bit", "quantized"]
