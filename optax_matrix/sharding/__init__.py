"""Where matrices live on a mesh.

A polar factor, a rotation or an eigenbasis needs the whole matrix, but FSDP and tensor
parallelism split every matrix among devices. Left to the partitioner, each product of
each Newton-Schulz iteration gathers matrices. `owners` gathers each matrix once: every
matrix has one owner, a device that keeps its state. A step sends the parts of each
gradient to the owner by ``all_to_all``, runs the whole chain of blocks there, on local,
whole matrices, and sends the parts of the update back.

Six matrices on four devices. Here only shapes are given, and no devices are needed:

>>> import jax, jax.numpy as jnp
>>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
>>> import optax_matrix as om
>>> kernel = jax.ShapeDtypeStruct((256, 64), jnp.float32)
>>> params = {f"layer_{i}": kernel for i in range(6)}
>>> specs = NamedSharding(AbstractMesh((4,), ("fsdp",)), P("fsdp"))
>>> placement = om.owners("fsdp", param_specs=specs)
>>> for row in om.describe(params, placement=placement).rows:
...     print(row.leaf, "is owned by", row.owners)
layer_0 is owned by 0 of 4
layer_1 is owned by 1 of 4
layer_2 is owned by 2 of 4
layer_3 is owned by 3 of 4
layer_4 is owned by 0 of 4
layer_5 is owned by 1 of 4

The first four are a complete round. The other two are the last round, in which two
devices have a matrix of zeros for padding and nothing to do. The busiest device has two
matrices; an even split would give it one and a half:

>>> om.sharding.plan(om.muon(0.02, placement=placement), params, specs).work
1.333...

Teams of two owners may share the last round. State stays where it is; only the
Newton-Schulz iteration is computed together:

>>> placement = om.owners("fsdp", param_specs=specs, teams=2)
>>> om.sharding.plan(om.muon(0.02, placement=placement), params, specs).work
1.0

The guide for users is ``.docs/guides/sharding.rst``. The files here:

* ``_owners`` is the placement, which `on_matrices` calls: a layout, then ``init`` and
  ``update`` in one ``shard_map`` each (``_run``). ``keep_sharding`` is the other
  placement, ``placement=None``, under which arrays stay where they are.
* ``_param_specs`` finds how parameters are sharded; ``_checks`` checks the other
  arguments.
* ``_owner_layout`` groups leaves of equal matrices into stacks, those of partners alike
  (``_bundles``), whatever their numbers of layers (``_depths``). For each group,
  ``_ownership`` says who owns which matrix, and ``_exchange`` cuts them into parts.
  ``_pools`` moves these by ``_collectives``.
* ``_balance`` decides who computes the last round, and ``_teams`` is what a team
  computes together.
* ``_state_pools`` decides which stacks share slots of state (``stacks.slots``), and
  converts the state before and after a step.
* ``_memory`` moves state to the memory of the host and back.
* ``_state_specs`` computes how state is sharded, with ``_stack_specs`` for stacks
  without owners.
* ``_plan`` computes what a step costs (``_costs``), and ``_planned`` prints it, in
  milliseconds of ``_chips`` if one is named.
* ``_tie`` has the backward pass compute the gradients of a layer together.
"""

from optax_matrix.sharding._owners import owners
from optax_matrix.sharding._plan import plan
from optax_matrix.sharding._planned import (
    Plan,
    PlannedChoice,
    PlannedGroup,
    PlannedTeams,
)
from optax_matrix.sharding._state_specs import state_rules, state_specs
from optax_matrix.sharding._tie import tie
from optax_matrix.sharding.keep_sharding import as_sharded

__all__ = [
    "Plan",
    "PlannedChoice",
    "PlannedGroup",
    "PlannedTeams",
    "as_sharded",
    "owners",
    "plan",
    "state_rules",
    "state_specs",
    "tie",
]
