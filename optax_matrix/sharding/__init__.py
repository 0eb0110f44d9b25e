"""Where matrices live on a mesh.

`owners` gives every matrix, whole, to one device; `state_specs` says where the state of
any optimizer lies. What arrays know of their sharding is read in `layout`; here it is
decided.
"""

from optax_matrix.sharding._owners import owners
from optax_matrix.sharding._state_specs import state_specs

__all__ = ["owners", "state_specs"]
