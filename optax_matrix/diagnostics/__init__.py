"""Measuring: what an optimizer holds, and how it works out.

`state_bytes` counts an optimizer's state without making it.
"""

from optax_matrix.diagnostics._state_bytes import StateBytes, StateField, state_bytes

__all__ = ["StateBytes", "StateField", "state_bytes"]
