"""Measurements of optimizers: `state_bytes` gives the size of a state."""

from optax_matrix.diagnostics._state_bytes import StateBytes, StateField, state_bytes

__all__ = ["StateBytes", "StateField", "state_bytes"]
