"""Recipes: published optimizers, each a chain of blocks with the defaults of its paper.

``om.<name>(learning_rate, ...)`` is a complete optimizer of the parameters of a model.
The method updates the matrices. AdamW, or the optimizer ``other=``, updates all other
leaves. ``om.scale_by_<name>(...)`` is the method alone, for chains: it has no weight
decay and no learning rate, and leaves other leaves unchanged. `poet`, `oft` and `muonh`
have no such form, because their updates already contain the learning rate. Recipes
contain no arithmetic; all of it is in the blocks.

>>> import jax, jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> params = {"kernel": jnp.eye(4, 8), "bias": jnp.zeros(8)}
>>> tx = om.muon(0.02, weight_decay=0.1, other=optax.adamw(1e-3))
>>> state = tx.init(params)

**Keywords of every recipe.** All but ``precision`` are None by default, and an argument
out of range is a `ValueError` when the optimizer is made.

* ``weight_decay_mask``: tree or prefix tree of True and False, or a function from the
  parameters to one, as in `optax.adamw`. None decays all leaves but vectors
  (`matrices.all_but_vectors`); True decays every leaf.
* ``cautious_decay``: if True, an entry decays only if the update moves it towards zero
  (`add_cautious_decay`).
* ``dimension_numbers``: which leaves are matrices, as in `on_matrices`.
* ``heads``: ``"split"`` takes each head of queries, keys and values as a matrix of its
  own, for Muon per head (`matrices.split_heads`); None takes kernels as a whole.
* ``placement``: where whole matrices live on a mesh, as in `on_matrices`.
* ``max_batch``: largest number of matrices that are updated at once (with `owners`, on
  each device), as in `on_matrices`. A small number saves temporary memory and takes
  longer to compile; None for a bound of `stacks.STACK_ELEMENTS` elements.
* ``other``: optimizer of all other leaves; None for AdamW.
* ``other_learning_rate``: learning rate of that AdamW, a number (which stays constant)
  or a schedule; None for the default of the recipe.
* ``other_weight_decay``: weight decay of that AdamW; None for that of the matrices.
* ``nonfinite``: what happens to a matrix whose gradient contains a NaN or infinity, as
  in `on_matrices`. Other matrices are updated as usual. None for ``"propagate"``, with
  which its update is NaN. The optimizer of other leaves decides about these.
  `optax.apply_if_finite` around the recipe skips the whole step.
* ``zero_gradient``: what happens while the gradient of a matrix is zero (an expert
  without tokens, a head that is off). ``"fade"``, the default, multiplies the k-th
  such update in a row by ``b1**k``. In all, the matrix then moves as far as in
  ``b1 / (1 - b1)`` ordinary steps at most, as with SGD or Adam. ``"skip"`` changes
  neither the matrix nor its state, and skips weight decay. ``"follow"`` does what the
  paper says: the matrix moves at full size while its momentum is not zero. Methods
  without momentum do not move then, and the updates of Adam in `poet` and `oft` shrink
  in any case. If you add weight decay to ``scale_by_<name>`` yourself, it continues
  with ``"skip"``.
* ``precision``: how float32 matrices are multiplied on accelerators
  (``linalg.precision``). ``"default"`` has the accuracy of float32 where a method needs
  it, by three narrow products, and bfloat16 in Newton-Schulz. ``"fast"`` is less
  accurate; do not use it for gradients of low rank. ``"exact"`` multiplies in float32.
  CPUs always use ``"exact"``.

**By name.** `create` makes a recipe from its name and from options in a configuration
file. ``recipes.METHODS`` has all recipes by group:

>>> tx = om.create("muon", 0.02, polar="polar_svd", mu_dtype="bfloat16")
>>> "Low rank" in om.recipes.METHODS
True

**Learning rates.** Use two rates. Keep your AdamW rate for embeddings, norms and
biases, and try 1, 2 and 4 times that rate for the weight matrices. From 100 million
parameters on, use your AdamW rate for both. This holds for recipes whose updates are as
large as those of AdamW, which are most. If they have another size (`muon`, `racs`,
`alice`, `galore`, `splus`), start at the rate of the paper, which is in the docstring.
``examples/study/pages/rates.md`` compares the rates of the papers with the best ones of
the study.

**Weight decay.** The default is that of the paper: 1, 0.1, 0.025, 0.01 or none. That of
`optax.adamw` is 1e-4. So another method may mean another decay; pass ``weight_decay``
to keep yours. It is multiplied by the learning rate. Vectors (biases, scales of norms,
scalars) do not decay (`matrices.all_but_vectors`). The papers do not mention vectors,
and their programs disagree: those of AdaMuon and MARS leave vectors out; those of
MuonEq, Moonlight and SOAP decay every leaf. The study and most training programs leave
them out, and so do recipes. ``weight_decay_mask=True`` decays every leaf.

**Learning rates of the other leaves.** By default, AdamW of the other leaves has the
learning rate of the matrices; ``other_learning_rate`` sets another one. Some methods
have a ratio of their own: 0.015 beside Keller Jordan's `muon` (but 1 with
``scaling="max"``), 0.05 in `racs`, `alice` and `alice_0`,
0.001 in `splus`, 3/13 in `muonh`, and 5 b / 256 in `poet` and `oft`, b being the side
of a block (10 f, where the block is a fraction f of a side).

`scale_by_path` multiplies the rates of some parameters, as the last of a chain:

>>> tx = optax.chain(om.muoneq(3e-3), om.scale_by_path({"kernel": 0.5}))

**Schedules.** A learning rate may be an optax schedule. With `inject_hyperparams`, all
numbers are part of the state, where they can be read, changed and scheduled:

>>> schedule = optax.cosine_decay_schedule(3e-3, 1000)
>>> tx = om.inject_hyperparams(om.muoneq)(schedule, b1=0.9)
>>> float(tx.init(params).hyperparams["learning_rate"])
0.003...

**Sweeps.** `sweep` finds a rate. In your own program, `jax.vmap` over ``init`` and
``update`` trains several rates and seeds. k runs need k times the state and k times the
arithmetic. Branches, such as renewals of a basis, are then computed in every step:

>>> def first_step(rate):
...     tx = om.muon(rate)
...     return tx.update(params, tx.init(params), params)[0]
>>> jax.jit(jax.vmap(first_step))(jnp.array([0.01, 0.02]))["kernel"].shape
(2, 4, 8)

**Continuing another run.** `adopt_state` converts the state of `optax.contrib.muon`, of
`optax.adamw` or of an optimizer of another program.

**Rotations.** ``aro(sharing="global")`` rotates all matrices on the residual stream by
one R. ``sharing="chain"`` uses one R for each place between layers. A step then has 1
or L + 1 factorizations. Both need the residual side of every matrix, from the usual
names or from ``matrices.infer(model)``. Layers are found by the numbers in paths
(``layers/0``, ``layers_0``; several numbers count together) or by the axis of scanned
layers. Each expert has its own R. An unclear order is an error. In `soap`,
`soap_muon`, `splus`, `kl_shampoo` and `kl_soap`, a side longer than
``max_dim=10_000`` is not rotated and has no state.

**Low rank.** `galore`, `alice`, `sumo` and the other low-rank methods renew their bases
in one branch of the step, and the default step has no SVD and no eigendecomposition of
a full side. ``last_layer="method"`` lets the method update the output head as well
(Alice's paper reports both). With ``rank=1.0, scale=1.0, switch="none",
transport="carry", start="exact"``, `alice` equals `eigen_adam` on exact eigenvectors
with the same ``update_interval``, to rounding.

>>> tx = om.galore(1e-3, rank=2, update_interval=200)
>>> state = tx.init(params)

**Fine-tuning.** Any recipe can fine-tune a pretrained model; to train only some leaves,
name them with ``dimension_numbers`` and freeze the rest with
``other=optax.set_to_zero()``. GaLore and SUMO move a matrix within a subspace, so
`weights.extract_adapter` can give the change as a LoRA pair. `poet` and `oft` turn the
weights; ``hold="recovered"`` then stores no copy of them. ``examples/finetune.py``
compares these methods with AdamW and LoRA.

>>> tx = om.sinkgd(1e-3, other=optax.set_to_zero())
>>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
>>> float(jnp.abs(updates["bias"]).max())
0.0

**Clipping.** One outlier gradient stays in the moving averages for many steps. So put
`optax.clip_by_global_norm` in front of a recipe, as the papers do:

>>> tx = optax.chain(optax.clip_by_global_norm(1.0), om.racs(0.02))
"""

from optax_matrix.recipes._adamuon import adamuon, scale_by_adamuon
from optax_matrix.recipes._alice import alice, alice_0, scale_by_alice, scale_by_alice_0
from optax_matrix.recipes._apollo import (
    apollo,
    apollo_mini,
    apollo_svd,
    scale_by_apollo,
    scale_by_apollo_mini,
    scale_by_apollo_svd,
)
from optax_matrix.recipes._aro import (
    aro,
    eigen_rownorm,
    eigen_sign,
    eigen_sinkhorn,
    scale_by_aro,
    scale_by_eigen_rownorm,
    scale_by_eigen_sign,
    scale_by_eigen_sinkhorn,
)
from optax_matrix.recipes._aurora import aurora, scale_by_aurora
from optax_matrix.recipes._create import create
from optax_matrix.recipes._dion import dion, scale_by_dion
from optax_matrix.recipes._dion2 import dion2, scale_by_dion2
from optax_matrix.recipes._eigen_adam import eigen_adam, scale_by_eigen_adam
from optax_matrix.recipes._fira import (
    fira,
    fira_plus,
    scale_by_fira,
    scale_by_fira_plus,
)
from optax_matrix.recipes._galore import galore, scale_by_galore
from optax_matrix.recipes._kl_shampoo import kl_shampoo, scale_by_kl_shampoo
from optax_matrix.recipes._kron import kron, scale_by_kron
from optax_matrix.recipes._ldadam import ldadam, scale_by_ldadam
from optax_matrix.recipes._mars import mars_adamw, scale_by_mars_adamw
from optax_matrix.recipes._mousse import mousse, scale_by_mousse
from optax_matrix.recipes._muon import muon, scale_by_muon
from optax_matrix.recipes._muon2 import muon2, scale_by_muon2
from optax_matrix.recipes._muon_plus import muon_plus, scale_by_muon_plus
from optax_matrix.recipes._muoneq import muoneq, scale_by_muoneq
from optax_matrix.recipes._muonh import muonh
from optax_matrix.recipes._normuon import normuon, scale_by_normuon
from optax_matrix.recipes._poet import oft, poet
from optax_matrix.recipes._racs import racs, scale_by_racs
from optax_matrix.recipes._scion import scale_by_scion, scion
from optax_matrix.recipes._shampoo import scale_by_shampoo, shampoo
from optax_matrix.recipes._sinkgd import scale_by_sinkgd, sinkgd
from optax_matrix.recipes._soap import kl_soap, scale_by_kl_soap, scale_by_soap, soap
from optax_matrix.recipes._soap_muon import scale_by_soap_muon, soap_muon
from optax_matrix.recipes._splus import scale_by_splus, splus
from optax_matrix.recipes._sumo import scale_by_sumo, sumo
from optax_matrix.recipes._swan import scale_by_swan, swan

METHODS = {
    "Orthogonalized momentum": [
        *(muon, muoneq, muon_plus, muon2, aurora, adamuon, normuon, mousse, dion),
        *(dion2, swan, scion, muonh),
    ],
    "Scaled rows, columns and entries": [sinkgd, racs, mars_adamw],
    "Rotated frames and preconditioners": [
        *(aro, eigen_sinkhorn, eigen_sign, eigen_rownorm, eigen_adam, soap, soap_muon),
        *(splus, shampoo, kl_shampoo, kl_soap, kron),
    ],
    "Low rank": [
        *(galore, alice, alice_0, sumo, fira, fira_plus),
        *(apollo, apollo_mini, apollo_svd, ldadam),
    ],
    "Orthogonal factors of the weights": [poet, oft],
}
"""The methods by group, as the gallery lists them; all but POET, OFT and MuonH have a
``scale_by_`` form. `create` finds them by name."""

__all__ = [
    "adamuon",
    "alice",
    "alice_0",
    "apollo",
    "apollo_mini",
    "apollo_svd",
    "aro",
    "aurora",
    "create",
    "dion",
    "dion2",
    "eigen_adam",
    "eigen_rownorm",
    "eigen_sign",
    "eigen_sinkhorn",
    "fira",
    "fira_plus",
    "galore",
    "kl_shampoo",
    "kl_soap",
    "kron",
    "ldadam",
    "mars_adamw",
    "mousse",
    "muon",
    "muon2",
    "muon_plus",
    "muoneq",
    "muonh",
    "normuon",
    "oft",
    "poet",
    "racs",
    "scale_by_adamuon",
    "scale_by_alice",
    "scale_by_alice_0",
    "scale_by_apollo",
    "scale_by_apollo_mini",
    "scale_by_apollo_svd",
    "scale_by_aro",
    "scale_by_aurora",
    "scale_by_dion",
    "scale_by_dion2",
    "scale_by_eigen_adam",
    "scale_by_eigen_rownorm",
    "scale_by_eigen_sign",
    "scale_by_eigen_sinkhorn",
    "scale_by_fira",
    "scale_by_fira_plus",
    "scale_by_galore",
    "scale_by_kl_shampoo",
    "scale_by_kl_soap",
    "scale_by_kron",
    "scale_by_ldadam",
    "scale_by_mars_adamw",
    "scale_by_mousse",
    "scale_by_muon",
    "scale_by_muon2",
    "scale_by_muon_plus",
    "scale_by_muoneq",
    "scale_by_normuon",
    "scale_by_racs",
    "scale_by_scion",
    "scale_by_shampoo",
    "scale_by_sinkgd",
    "scale_by_soap",
    "scale_by_soap_muon",
    "scale_by_splus",
    "scale_by_sumo",
    "scale_by_swan",
    "scion",
    "shampoo",
    "sinkgd",
    "soap",
    "soap_muon",
    "splus",
    "sumo",
    "swan",
]
