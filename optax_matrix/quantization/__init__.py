"""Optimizers whose moments are stored in eight bits.

`quantized` is a placement: any recipe with ``placement=om.quantized()`` stores the
moments of its matrices in blocks of eight-bit numbers, each block with a scale, and
computes in float32. `adamw_8bit` does the same for the other parameters. Both quantize
as `quantize_state` does, on the device that holds the state.
"""

from optax_matrix.quantization._adamw_8bit import adamw_8bit
from optax_matrix.quantization._quantized import quantized

__all__ = ["adamw_8bit", "quantized"]
