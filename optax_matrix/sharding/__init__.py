"""Where matrices and their state live on a mesh.

A matrix that is sharded over devices is expensive to orthogonalize or decompose: the
partitioner gathers it again and again. `owners` therefore gives every whole matrix to
one device. A step sends each gradient to the owner of its matrix (one ``all_to_all``
per group of equal leaves), runs the whole chain there on local matrices, and sends the
update back; state stays with the owners. `state_specs` gives the partition specs of the
state of any optimizer, for `jax.jit` and for checkpoints.

How arrays are sharded is read in `layout.specs`; here it is decided.
"""

from optax_matrix.sharding._owners import owners
from optax_matrix.sharding._state_specs import state_specs

__all__ = ["owners", "state_specs"]
