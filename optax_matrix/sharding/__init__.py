"""Where matrices live on a mesh.

Every recipe runs on sharded parameters as it is, in Auto and in Explicit mode (where
`optax.contrib.muon` raises). The result is correct but not fast: left to the
partitioner, each Newton-Schulz iteration gathers matrices. `owners` is a placement that
sends each gradient to the one device that owns the matrix, runs the whole method there,
and sends the update back:

>>> import jax, jax.numpy as jnp
>>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
>>> import optax_matrix as om
>>> devices = jax.devices()[:1]
>>> mesh = jax.make_mesh((1,), ("fsdp",), (AxisType.Explicit,), devices=devices)
>>> weights = {"up": jnp.ones((64, 256)), "gate": jnp.ones((64, 256))}
>>> params = jax.device_put(weights, NamedSharding(mesh, P("fsdp")))
>>> tx = om.muoneq(3e-3, placement=om.owners("fsdp"))
>>> opt_state = jax.jit(tx.init)(params)
>>> updates, opt_state = jax.jit(tx.update)(params, opt_state, params)

With Explicit axes, the default of `jax.make_mesh` in current JAX, that is all, because
types contain the sharding. With Auto axes they do not. Give the specs to `owners`, or
let it read them from arrays; and place the state of all other leaves, which would
otherwise be left to the partitioner, by `state_specs`:

>>> mesh = jax.make_mesh((1,), ("fsdp",), (AxisType.Auto,), devices=devices)
>>> params = jax.device_put(weights, NamedSharding(mesh, P("fsdp")))
>>> placement = om.owners("fsdp", param_specs=P("fsdp"))  # One for all, or a tree.
>>> placement = om.owners.from_params(params, "fsdp")  # Or those they have now.
>>> tx = om.muoneq(3e-3, placement=placement)
>>> to_sharding = lambda spec: NamedSharding(mesh, spec)
>>> shardings = jax.tree.map(to_sharding, om.state_specs(tx, params))
>>> opt_state = jax.jit(tx.init, out_shardings=shardings)(params)

A tree of specs is ``nnx.get_partition_spec(nnx.state(model, nnx.Param))`` in NNX,
``nn.get_partition_spec(variables)`` in Linen, or any tree of
`jax.sharding.PartitionSpec` over mesh axes. Translate logical names first, in Linen by
``nn.logical_to_mesh``.

**State** of matrices is created on its owners and stays there. `state_specs` gives the
`jax.sharding.PartitionSpec` of every array of the state, for the ``out_shardings`` of
``init`` and of the training step, and for restoring a checkpoint. `to_portable` gives
the same on every mesh.

**Frameworks that place state by themselves.** State is in the boxes of its parameters:
``nnx.get_partition_spec(nnx.state(optimizer))`` of NNX (MaxText, Tunix),
``nn.get_partition_spec(jax.eval_shape(tx.init, boxed_params))`` of Linen (nanodo) and
the axes of haliax arrays (Levanter) give every stack its spec. With ``placement=None``
a stack has the names of its first leaf, mesh axes or logical ones; with `owners` its
batch axis has the owner axes, so give rules for logical names these axes, too
(``("fsdp", "fsdp")``; for haliax ``"fsdp+tp": ("fsdp", "tp")``). Where a framework
matches regular expressions with the paths of the state (EasyDeL, T5X), `state_rules`
has them. AXLearn's ``with_partition_fn`` takes a function of `state_specs`. Kauldron
and others that leave state to the partitioner need `state_specs` only under Auto axes.
`update` warns once of state that it sees arrive replicated.

**One shape on every mesh.** The number of matrices in a stack is a multiple of the
owners, so it changes with the mesh. With ``owners(..., pad_to=8)`` it is the same on
meshes of 1, 2, 4 and 8 owners, and a framework restores the state of one on another.

**Communication.** A step needs two ``all_to_all`` for each group of equal leaves
(three, if a transformation needs the parameters), in bfloat16 with
``wire_dtype=jnp.bfloat16``. Layers and experts that a mesh axis already splits need
none along that axis. Leaves that are replicated along an owner axis are split among its
devices, and their updates are gathered. Name such an axis last: of a model with
experts, ``owners(("fsdp", "expert"))`` spreads the few matrices of attention along
``expert``, and little padding is gathered with them. An axis that no spec and no owner
names, such as that of data-parallel slices, has no communication: all of its devices do
the same. TPUs run an ``all_to_all`` while nothing else runs, unless the training step
is compiled with
``jax.jit(step, compiler_options={"xla_tpu_enable_async_all_to_all": "true"})``: then,
compiled for 16 v5e, two of the eight of a `muon` step are in flight beside the
Newton-Schulz iteration of other groups (``examples.study aot --async``), and seven
in a whole training step, where gradients leave during the backward pass. They cannot if
``optax.clip_by_global_norm`` comes first, which waits for all of them
(``examples.study training``).

**Which axes.** A group of K matrices is padded to a multiple of the N owners. If K is
small, name fewer axes: the others then stay inside the matrices, where the partitioner
handles them, for less work and more communication. Owners are for methods that multiply
matrices; methods that only scale rows and columns (RACS, SinkGD) exchange little
without owners.

**More devices than matrices.** With ``owners(..., plan="auto")`` a few chips share a
matrix where too few are left over for all: teams of consecutive owners split it along
its long side and compute its Newton-Schulz iteration together. By calculation, the
busiest of 1024 devices does 1.23 times the even share of an 8.6B model's work, instead
of 7.4 times, and sends 784 MiB more in bfloat16. `CostModel` has the numbers of the
accelerator by which the plan is made.

`plan` prints what a step costs before anything runs: who owns what, the work of the
busiest device, bytes, and what other axes would cost.

**Rounding.** Placement changes nothing but rounding, which some methods amplify, on
one device as on many. For 30 steps of a small LLaMA in float32, perturbing the
gradients by one ulp changes some entry of an update by this fraction of the update's
root mean square:

- 2e-6 to 2e-4: MARS, SinkGD, RACS, APOLLO, Muon and most of its variants, SUMO, POET;
- 2e-4 to 8e-3: Fira, GaLore, Aurora, LDAdam, Alice, Shampoo;
- 2e-2 to 0.1: Mousse, Alice-0, Dion;
- one and more: Eigen-Adam, SOAP, SPlus, KL-Shampoo, ARO and relatives.

Eight devices differ from one by as much (`adamuon` 6e-5). In the last group a rotation
into eigenvectors meets a division that makes all directions equally large: where the
gradient has next to no signal in some directions, float32 does not determine them. In
float64 these differ by at most 3e-5 (SOAP, SPlus and KL-Shampoo with ``side="short"``).
``pytest -m slow -rP tests/sharding/test_same_results.py`` prints the numbers.

**Memory.** ``on_matrices(..., max_batch=...)`` bounds the matrices in a stack, on each
device; by default a stack has at most 2^26 numbers per device. With `owners`, blocks
compute stacks that they see in one shape together, up to this bound: a kernel of
``(1024, 4096)`` and one of ``(4096, 1024)`` make one program. State is not affected.

**Without the pod.** ``python -m examples.study aot`` compiles a step for a TPU pod
on a machine without one; ``examples/study/pages/tpu.md`` has what it gives.
``examples/train_sharded.py`` trains a LLaMA under FSDP and tensor parallelism on
whatever devices there are: ``python -m examples.train_sharded --cpu-devices 8 --mesh
fsdp=4,tp=2`` runs on a laptop, and its docstring says how to start it on many hosts.
Two processes give the losses of one to rounding, which a test checks.
"""

from optax_matrix.sharding._cost_model import CostModel
from optax_matrix.sharding._owners import owners
from optax_matrix.sharding._plan import plan
from optax_matrix.sharding._planned import Plan, PlannedGroup
from optax_matrix.sharding._state_rules import state_rules
from optax_matrix.sharding._state_specs import state_specs

__all__ = [
    "CostModel",
    "Plan",
    "PlannedGroup",
    "owners",
    "plan",
    "state_rules",
    "state_specs",
]
