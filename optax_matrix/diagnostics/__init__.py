"""Measuring matrices, methods and optimizers.

Measures are functions of stacks ``(..., m, n)`` with one number per matrix. They
compute in float32 at least and work inside `jax.jit`. Zero and rank-deficient matrices
give finite numbers, or infinity where their docstrings say so, and never NaN.

**Spectra**: `singular_values`, `stable_rank`, `condition_number`, `spectral_entropy`,
`effective_rank`, and `tail_energy`, the share outside the best rank-k approximation.

**Norms and rotations**: `norm_spread` of rows or columns, `hyperspherical_energy` of
neurons, `diagnostics.orthogonality_error`, `probe` and `mean_probe` (by which angle a
rotation turns a vector), `coverage` (which entries updates changed) and
`updates_per_entry`.

**Subspaces**: `captured_energy`, `subspace_overlap`, `eigenvector_cosines`, and
`basis_stability` of a basis over its renewals.

`of_matrices` applies any of them to every matrix of a tree:

>>> import jax, jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"up": {"kernel": jnp.eye(4, 8), "bias": jnp.ones(8)}}
>>> om.diagnostics.of_matrices(om.diagnostics.stable_rank, params)
{'up/kernel': Array([4.], dtype=float32)}

**Orthogonalization** (MuonEq): `newton_schulz_errors` after each step with
`newton_schulz_bound`, `linear_regime_ends` of each singular value, and the two terms of
its Eq. 5, `finite_step_error` and `preconditioning_bias`.

**Rotations** (ARO): `rotation_objective`, `alignment_score`, `qr_condition_numbers`,
and `follow_policies`, which runs several policies along one trajectory of momenta:

>>> momenta = jax.random.normal(jax.random.key(0), (5, 4, 8))  # Five steps.
>>> followed = om.diagnostics.follow_policies(momenta, jnp.sign, ("eigen", "aro"))
>>> {policy: curves.objective.shape for policy, curves in followed.items()}
{'eigen': (5,), 'aro': (5,)}

**States**: `bases` are those of GaLore, Alice, SUMO, SOAP and others by parameter path,
and the function `diagnostics.rotations` makes R and P of POET and OFT dense, in both
forms:

>>> state = om.poet(1e-3, block=2).init(params)
>>> held = om.diagnostics.rotations(state, params)["up/kernel"]
>>> om.diagnostics.orthogonality_error(held.r).tolist()
[0.0]

**While training**: `monitor` measures the updates of any optimizer inside of jit and
under sharding, and `read_monitor` returns the values by path for any logger:

>>> tx = om.diagnostics.monitor(om.muon(1e-3), ("update_rms", "orthogonality_error"))
>>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
>>> sorted(om.diagnostics.read_monitor(state)["up/kernel"])
['orthogonality_error', 'update_rms']

**Memory.** `state_bytes` lists every array of an optimizer's state, stack by stack and
leaf by leaf. It needs only shapes, so it works for models that do not fit on the
machine:

>>> params = {"kernel": jax.ShapeDtypeStruct((4096, 16384), jnp.bfloat16)}
>>> counted = om.diagnostics.state_bytes(om.galore(1e-3, rank=512), params)
>>> counted.elements / counted.parameters < 0.35
True

``print(counted)`` shows the whole table. ``python -m examples.study memory-table``
counts LLaMA models of 60M to 7B parameters under thirteen optimizers.
"""

from optax_matrix.diagnostics._monitor import MonitorState, monitor, read_monitor
from optax_matrix.diagnostics._norms import (
    coverage,
    hyperspherical_energy,
    mean_probe,
    norm_spread,
    orthogonality_error,
    probe,
    updates_per_entry,
)
from optax_matrix.diagnostics._of_matrices import of_matrices
from optax_matrix.diagnostics._orthogonalization import (
    finite_step_error,
    linear_regime_ends,
    newton_schulz_bound,
    newton_schulz_errors,
    preconditioning_bias,
)
from optax_matrix.diagnostics._primitives import Rotations, rotations
from optax_matrix.diagnostics._rotation_objectives import (
    FollowedPolicy,
    QrConditioning,
    alignment_score,
    follow_policies,
    qr_condition_numbers,
    rotation_objective,
)
from optax_matrix.diagnostics._spectra import (
    condition_number,
    effective_rank,
    singular_values,
    spectral_entropy,
    stable_rank,
    tail_energy,
)
from optax_matrix.diagnostics._state_bytes import StateBytes, StateField, state_bytes
from optax_matrix.diagnostics._states import bases
from optax_matrix.diagnostics._subspaces import (
    basis_stability,
    captured_energy,
    eigenvector_cosines,
    subspace_overlap,
)

__all__ = [
    "FollowedPolicy",
    "MonitorState",
    "QrConditioning",
    "Rotations",
    "StateBytes",
    "StateField",
    "alignment_score",
    "bases",
    "basis_stability",
    "captured_energy",
    "condition_number",
    "coverage",
    "effective_rank",
    "eigenvector_cosines",
    "finite_step_error",
    "follow_policies",
    "hyperspherical_energy",
    "linear_regime_ends",
    "mean_probe",
    "monitor",
    "newton_schulz_bound",
    "newton_schulz_errors",
    "norm_spread",
    "of_matrices",
    "orthogonality_error",
    "preconditioning_bias",
    "probe",
    "qr_condition_numbers",
    "read_monitor",
    "rotation_objective",
    "rotations",
    "singular_values",
    "spectral_entropy",
    "stable_rank",
    "state_bytes",
    "subspace_overlap",
    "tail_energy",
    "updates_per_entry",
]
