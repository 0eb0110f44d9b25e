"""What acts on weights themselves, not on gradients.

**Initialization.** `initialize_matrices` draws new matrices for any tree, wherever
its leaves keep inputs, outputs, heads and layers: ``"normalized"`` (every output neuron
has norm one, POET's default), ``"standard"``, ``"xavier"``, ``"uniform_spectrum"`` (all
singular values are one), or an initializer of `jax.nn`. Dtypes and shardings stay.
`stacks.map_matrices` applies any function of matrices to a tree.

>>> import jax, jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> params = {"up": jnp.zeros((8, 16)), "bias": jnp.zeros(16)}
>>> params = om.initialize_matrices(params, jax.random.key(0))
>>> norms = jnp.linalg.norm(params["up"], axis=0)  # Kernels are (in, out).
>>> norms.round(3).tolist()[:2]
[1.0, 1.0]

**Adapters.** ``extract_adapter(before, after, rank)`` gives the LoRA pair of what
fine-tuning changed, matrix by matrix (in Flax's orientation, ``lora_a`` and ``lora_b``
of ``nnx.LoRA``). It is the best approximation of its rank, and exact where the change
has no higher rank. `apply_adapter` adds it to a tree.

>>> changed = {**params, "up": params["up"] + jnp.ones((8, 16))}
>>> adapters = om.extract_adapter(params, changed, rank=1)
>>> restored = om.apply_adapter(params, adapters)
>>> bool(jnp.allclose(restored["up"], changed["up"], atol=1e-5))
True

**Attention logits.** `clip_qk` scales down the query and key kernels of the heads whose
logits passed a threshold (the QK-Clip of MuonClip).

**Fixed norms.** `hyperball` puts steps that keep the norm of each matrix around any
optimizer, in place of weight decay.

**Symmetry.** `rotate_residual` turns the coordinates of the residual stream; a
transformer with RMSNorm stays the same function.

**POET on ordinary parameters.** ``om.poet(4e-3, block=64)`` keeps W = R W₀ P, with
orthogonal R and P made of random blocks, so singular values stay what the
initialization made them. Any other change of W (weight decay, averaging, a restored
checkpoint, a masked update) is detected exactly, bit for bit, and absorbed into W₀. W₀
is part of the state, in float32, so bfloat16 parameters do not stall;
``hold="recovered"`` computes it from W instead and stores nothing. On CPU, `poet` takes
large matrices one by one; elsewhere it takes whole stacks.

The default map from Q to rotations is exact (`linalg.cayley`). The paper's is a series
of products, `linalg.cayley_neumann`, by ``terms=4``: each merge stretches singular
values by up to s¹⁰/2 on either side, where s is the norm of Q. At the paper's rates s
passes 1. ``max_norm=0.5``, the default with ``terms``, bounds it
(`transforms.limit_skew_norm`). ``merge_at=0.5`` merges a matrix by itself as soon as
the norm of one of its Q reaches 0.5, so the matrix can turn further than under the
bound alone. On the tiny LLaMA (``examples/study/pages/poet.md``) the bound was as good
as the exact map, and merges cost a little. Where products are much faster than solving
systems, as on TPUs, take ``terms=4``.

**POET with frozen weights.** `reparameterize` is POET in its memory-saving form.
Weights are W₀, which is frozen, between rotations, and only the rotations have
gradients and moments:

>>> loss = lambda params: jnp.sum((params["up"] - 1) ** 2)
>>> poet = om.reparameterize(block=4, merge_interval=400)
>>> frozen, trainable = poet.split(params)
>>> tx = poet.optimizer(rotations=optax.adam(1e-3), others=optax.adamw(1e-3))
>>> opt_state = tx.init(trainable)
>>> @jax.jit
... def train_step(frozen, trainable, opt_state):
...     grads = jax.grad(lambda t: loss(poet.materialize(frozen, t)))(trainable)
...     updates, opt_state = tx.update(grads, opt_state, trainable)
...     trainable = optax.apply_updates(trainable, updates)
...     return poet.merge_if_due(frozen, trainable, opt_state, tx)
>>> frozen, trainable, opt_state = train_step(frozen, trainable, opt_state)
>>> trained = jax.jit(poet.materialize)(frozen, trainable)  # A tree like `params`.
>>> bool(loss(trained) < loss(params))
True

With a Flax NNX model, ``graphdef, params = nnx.split(model)`` gives the tree, and
``nnx.merge(graphdef, trained)`` makes a model of it again.

Both forms follow the same trajectory with the same random draws; a test compares them.
All parts are plain arrays, sharded as the parameters are (rotations are replicated, or
split as you like), and may be saved in the middle of a merge period. `clip_after_merge`
is the authors' clip threshold; their learning rate of the rotations is proportional to
1 / ``block``. Trainable parameters are those of the paper's Table 2 (its 118.26M are
118.29M).

A leaf of scanned layers may be made inside the scan from slices of the parts, so that
only one layer's weights exist at a time. Memory is saved when layers are made inside
the scan, and most when the merge is a program of its own that runs every 400 steps:
``jax.jit(poet.merge, static_argnums=3)``. ``examples/study/pages/poet.md`` has the
memory of each choice and the effect of the bound on singular values.
"""

from optax_matrix.weights._adapters import Adapter, apply_adapter, extract_adapter
from optax_matrix.weights._clip_qk import clip_qk
from optax_matrix.weights._clip_schedule import clip_after_merge
from optax_matrix.weights._hyperball import hyperball
from optax_matrix.weights._initialize import INITIALIZERS, initialize_matrices
from optax_matrix.weights._initializers import (
    Initializer,
    normalized_gaussian,
    standard_gaussian,
    uniform_spectrum,
    xavier_gaussian,
)
from optax_matrix.weights._reparameterization import (
    Frozen,
    Reparameterization,
    Trainable,
)
from optax_matrix.weights._reparameterize import reparameterize
from optax_matrix.weights._rotate_residual import rotate_residual

__all__ = [
    "INITIALIZERS",
    "Adapter",
    "Frozen",
    "Initializer",
    "Reparameterization",
    "Trainable",
    "apply_adapter",
    "clip_after_merge",
    "clip_qk",
    "extract_adapter",
    "hyperball",
    "initialize_matrices",
    "normalized_gaussian",
    "reparameterize",
    "rotate_residual",
    "standard_gaussian",
    "uniform_spectrum",
    "xavier_gaussian",
]
