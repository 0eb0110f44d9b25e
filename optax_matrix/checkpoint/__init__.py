"""Optimizer state that outlives a model's names, meshes and optimizers.

State is stacked, and the names of the stacks hold a checksum of the parameters' paths,
shapes and axes. Restoring the state of other parameters, or of a renamed layer, is
therefore an error and never swaps momenta. The state also holds the name of its method:
that of `muon` is an error in `muoneq`, although its arrays have the same shapes.
Numbers and options of a method may change. `check_restored` tells whether a state that
was restored by position is the right one. For a checkpoint that survives renaming,
added or frozen layers and other meshes, save the state by path:

>>> import jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
>>> tx = om.muoneq(1e-3)
>>> portable = om.to_portable(tx.init(params), params)  # {name: array}
>>> params = {"gate": params["up"]}
>>> fresh = tx.init(params)
>>> state = om.from_portable(portable, fresh, params, rename={"up": "gate"})
>>> om.check_restored(state)

With ``missing="init"``, the state of new parameters starts fresh, and so do the shared
rotations of ``aro(sharing="chain")`` when the number of layers changes. With
``unused="drop"``, the state of removed parameters is dropped. With
``places={"": "1"}``, an optimizer that is now the second of an `optax.chain` takes over
the state that it had by itself. To carry state over to
another method or to turned parameters on purpose, leave out the entries under
``method`` or ``manifest``.

`muon_state_from_optax` takes over the momenta of `optax.contrib.muon`. `reset_state`
starts the state of dead units and new heads afresh. After `register_export`,
`jax.export` saves programs whose arguments are states.
"""

from optax_matrix.checkpoint._check_restored import check_restored
from optax_matrix.checkpoint._muon_state_from_optax import muon_state_from_optax
from optax_matrix.checkpoint._portable import from_portable, to_portable
from optax_matrix.checkpoint._register_export import register_export
from optax_matrix.checkpoint._reset_state import reset_state

__all__ = [
    "check_restored",
    "from_portable",
    "muon_state_from_optax",
    "register_export",
    "reset_state",
    "to_portable",
]
