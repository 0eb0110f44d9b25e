"""Measuring optimizers.

`state_bytes` lists every array of an optimizer's state, stack by stack and leaf by
leaf. It needs only shapes, so it works for models that do not fit on the machine:

>>> import jax, jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"kernel": jax.ShapeDtypeStruct((4096, 16384), jnp.bfloat16)}
>>> counted = om.diagnostics.state_bytes(om.galore(1e-3, rank=512), params)
>>> counted.elements / counted.parameters < 0.35
True

`monitor` measures the updates of any optimizer while it trains, inside of jit and under
sharding, and `read_monitor` returns the values by path for any logger.

``print(counted)`` shows the whole table. ``examples/memory_table.py`` counts LLaMA
models of 60M to 7B parameters under thirteen optimizers.
"""

from optax_matrix.diagnostics._monitor import MonitorState, monitor, read_monitor
from optax_matrix.diagnostics._state_bytes import StateBytes, StateField, state_bytes

__all__ = [
    "MonitorState",
    "StateBytes",
    "StateField",
    "monitor",
    "read_monitor",
    "state_bytes",
]
