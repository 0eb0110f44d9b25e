"""State of optimizers in eight or four bits per number.

Moments are stored in one byte per number (block-wise dynamic quantization, Dettmers et
al. 2022). Blocks of 256 numbers share a scale and stay inside a matrix. The moments of
matrices with fewer than 4096 numbers are not quantized. With ``bits=4`` two numbers
share a byte, and each row and each column has a scale (Li et al. 2023).

===================  ===================================================================
``_codes``           `quantize` and `dequantize`: arrays to codes and scales, and back
``_four_bits``       the same for four bits
``packing``          the state with codes, their meaning and their numbers
``quantizer``        which moments of a state are quantized, and with which noise
``_quantize_state``  `quantize_state` around any optimizer of optax; `adamw_8bit` is
                     AdamW inside of it
``_quantized``       `quantized`, a placement: every recipe accepts it. Checkpoints,
                     `state_specs` and the sharded step work on the codes
===================  ===================================================================

>>> import jax, jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> tx = om.adamw_8bit(1e-3)  # The same as:
>>> tx = om.quantization.quantize_state(optax.adamw(1e-3))
>>> tx = om.muon(1e-3, placement=om.quantized(), other=om.adamw_8bit(1e-3))
>>> shapes = {"kernel": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
>>> fields = om.diagnostics.state_bytes(tx, shapes).fields
>>> [f.dtype.name for f in fields if f.field == "mu"]
['uint8']
>>> placement = om.quantized(om.owners(("fsdp", "tp")))  # Where the matrices live.
"""

from optax_matrix.quantization._codes import dequantize, quantize
from optax_matrix.quantization._quantize_state import adamw_8bit, quantize_state
from optax_matrix.quantization._quantized import quantized

__all__ = [
    "adamw_8bit",
    "dequantize",
    "quantize",
    "quantize_state",
    "quantized",
]
