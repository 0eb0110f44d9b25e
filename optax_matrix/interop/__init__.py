"""Training that began with another library's optimizer, continued with this one.

An optimizer of another library may have the same state in another form.
`muon_state_from_optax` converts the state of `optax.contrib.muon`.
"""

from optax_matrix.interop._muon_state_from_optax import muon_state_from_optax

__all__ = ["muon_state_from_optax"]
