"""Optimizer state that outlives a model's names, meshes and optimizers.

State is stacked, and restoring the state of other parameters, of a renamed layer or of
another method is an error: the names of the stacks hold a checksum of paths, shapes and
axes, and the state has the name of its method.

* `to_portable` and `from_portable`: the state by parameter path, which survives
  renaming, added or frozen layers, and other meshes.
* `check_restored`: whether a state that was restored by position is the right one.
* `adopt_state`: the state of other optimizers, of optax or PyTorch.
* `reset_state`: dead units and new heads start afresh.
* `register_export`: `jax.export` of programs whose arguments are states.

>>> import jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
>>> tx = om.muoneq(1e-3)
>>> portable = om.to_portable(tx.init(params), params)  # {name: array}
>>> om.check_restored(om.from_portable(portable, tx.init(params), params))

``.docs/guides/checkpoints.rst`` says what to do about each change of a model.
"""

from optax_matrix.checkpoint._adopt_state import adopt_state
from optax_matrix.checkpoint._check_restored import check_restored
from optax_matrix.checkpoint._portable import from_portable, to_portable
from optax_matrix.checkpoint._register_export import register_export
from optax_matrix.checkpoint._reset_state import reset_state

__all__ = [
    "adopt_state",
    "check_restored",
    "from_portable",
    "register_export",
    "reset_state",
    "to_portable",
]
