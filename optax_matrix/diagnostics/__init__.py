"""Measuring optimizers: `state_bytes` counts a state without making it."""

from optax_matrix.diagnostics._state_bytes import StateBytes, StateField, state_bytes

__all__ = ["StateBytes", "StateField", "state_bytes"]
