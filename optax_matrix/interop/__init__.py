"""Continuing a training run that was started with another library's optimizer.

An optimizer of another library may hold the same state in another format.
`muon_state_from_optax` converts the state of `optax.contrib.muon`.
"""

from optax_matrix.interop._muon_state_from_optax import muon_state_from_optax

__all__ = ["muon_state_from_optax"]
