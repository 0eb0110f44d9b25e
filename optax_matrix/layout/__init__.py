"""The matrix view of a parameter tree.

Papers write about one matrix of shape ``(out, in)``. A model is a tree of kernels
``(in, out)``, attention kernels with heads, stacked layers, experts, convolutions and
biases. This package translates between the two once, so that no block has to:

1. A rule (`default_rule`, `by_path`, `infer`) decides for each leaf whether it is a
   matrix, and which of its axes are outputs and inputs (`MatrixDimensionNumbers`).
2. A `MatrixView` presents one leaf as matrices ``(batch, out, in)``.
3. `make_layout` groups equal matrices of all leaves into stacks, a `Layout`.
4. `on_matrices` runs a transformation of these stacks on the whole tree; a `Placement`
   decides on which devices.

**Which leaves are matrices.** The default rule decides by path, shape and dtype, the
same way at ``init`` and at ``update``. Embeddings, output heads, routers, norms, biases
and depthwise convolutions are recognized by name and left to the other optimizer.
Kernels are ``(..., in, out)`` as in Flax, with layers and experts in front. `describe`
shows the decision for every leaf:

>>> import jax, jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> params = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
>>> print(om.describe(params, matrix="muon", other="adamw"))
leaf       shape   view        group  optimizer  why
up/bias    (8,)    -           -      adamw      a vector
up/kernel  (4, 8)  1x (8, 4)   ...    muon       kernel (in, out)

Layouts that names do not reveal (layers in an axis other than the first, the ``(out,
in)`` weights of Equinox) are given by ``dimension_numbers``, which every recipe takes:

>>> from optax_matrix import MatrixDimensionNumbers, layout
>>> by_name = layout.by_path(include="embed", exclude="layers/11/")
>>> equinox = layout.by_path(numbers={"weight": MatrixDimensionNumbers(1, 0)})
>>> fused = MatrixDimensionNumbers(output_sections=(512, 128, 128))
>>> qkv = layout.by_path(numbers={"qkv": fused})
>>> optax_numbers = optax.contrib.MuonDimensionNumbers(0, (1, 2))  # Also accepted.
>>> tx = om.muon(0.02, dimension_numbers=equinox)

**LoRA.** Both factors (``lora_a``, ``lora_b``) are matrices. LoRA+ trains B at a larger
rate than A, which `scale_by_path` does. For B alone, exclude A:

>>> only_b = layout.by_path(exclude="lora_a")
>>> faster_b = optax.chain(om.muoneq(1e-4), om.scale_by_path({"lora_b": 16.0}))

``MatrixDimensionNumbers(reduction_axis, output_axis)`` names the two axes of the
matrix; all other axes count matrices. ``output_sections=8`` treats the eight heads of a
flat kernel as eight matrices. `by_path` matches regular expressions. `infer` reads the
logical axis names of a model (embed, heads, mlp, vocab, ...), and also tells which side
of a matrix is on the residual stream. The default rule knows that side for the usual
names only; `recipes.aro` uses it. For your own partition of the leaves, `label_params`
gives labels for `optax.partition`.

**Which transformations are allowed.** At ``init``, `on_matrices` tests whether a
transformation treats each matrix by itself, and raises an error if it does not, as
`optax.clip_by_global_norm` or `optax.scale_by_trust_ratio`. Chain these outside of
`on_matrices`. `per_matrix` maps a transformation that is defined per leaf over the
matrices of a stack:

>>> tx = om.on_matrices(om.per_matrix(optax.scale_by_trust_ratio()), needs_params=True)
>>> _ = tx.init(params)

**Checkpoints.** State is stacked, and the names of the stacks hold a checksum of the
parameters' paths, shapes and axes. Restoring the state of other parameters, or of a
renamed layer, is therefore an error and never swaps momenta. The state also holds the
name of its method: that of `muon` is an error in `muoneq`, although its arrays have the
same shapes. Numbers and options of a method may change. `check_restored` tells whether
a state that was restored by position is the right one. For a checkpoint that survives
renaming, added or frozen layers and other meshes, save the state by path:

>>> tx = om.muoneq(1e-3)
>>> portable = om.to_portable(tx.init(params), params)  # {name: array}
>>> params = {"gate": params["up"]}
>>> fresh = tx.init(params)
>>> state = om.from_portable(portable, fresh, params, rename={"up": "gate"})
>>> om.check_restored(state)

With ``missing="init"``, the state of new parameters starts fresh, and so do the shared
rotations of ``aro(sharing="chain")`` when the number of layers changes. With
``unused="drop"``, the state of removed parameters is dropped. To carry state over to
another method or to turned parameters on purpose, leave out the entries under
``method`` or ``manifest``.

**Memory.** Stacking copies matrices, so a stack has at most ``STACK_ELEMENTS`` numbers;
``on_matrices(..., max_batch=...)`` sets another bound. A function of matrices, not of
gradients, runs on a tree by `map_matrices`.
"""

from optax_matrix.layout._default_rule import default_rule
from optax_matrix.layout._describe import Description, describe
from optax_matrix.layout._dimension_numbers import MatrixDimensionNumbers
from optax_matrix.layout._doubts import DoubtfulMatrixWarning
from optax_matrix.layout._guarded import guarded
from optax_matrix.layout._heads import heads_as_matrices
from optax_matrix.layout._infer import infer
from optax_matrix.layout._keep_sharding import KeepSharding
from optax_matrix.layout._labels import label_params
from optax_matrix.layout._layout import EMPTY_LAYOUT, Layout, make_layout
from optax_matrix.layout._map_matrices import map_matrices
from optax_matrix.layout._names import HEADS
from optax_matrix.layout._nonfinite import NonFinite as NonFinite
from optax_matrix.layout._on_mapped_params import on_mapped_params
from optax_matrix.layout._on_matrices import on_matrices
from optax_matrix.layout._orientation import Orientation, oriented_sides
from optax_matrix.layout._oriented import oriented
from optax_matrix.layout._per_matrix import per_matrix
from optax_matrix.layout._portable import check_restored, from_portable, to_portable
from optax_matrix.layout._probe import refuse_coupling
from optax_matrix.layout._residual_sets import SHARINGS, residual_sets
from optax_matrix.layout._rules import (
    PathRule,
    Resolved,
    UnmatchedPatternWarning,
    by_path,
    resolve,
    with_embeddings,
)
from optax_matrix.layout._scale_by_path import scale_by_path
from optax_matrix.layout._state import OnMatricesState
from optax_matrix.layout._view import MatrixView, make_view
from optax_matrix.layout.groups import FILLER, STACK_ELEMENTS, Group, Member
from optax_matrix.layout.placement import Placement

__all__ = [
    "EMPTY_LAYOUT",
    "FILLER",
    "HEADS",
    "SHARINGS",
    "STACK_ELEMENTS",
    "Description",
    "DoubtfulMatrixWarning",
    "Group",
    "KeepSharding",
    "Layout",
    "MatrixDimensionNumbers",
    "MatrixView",
    "Member",
    "OnMatricesState",
    "Orientation",
    "PathRule",
    "Placement",
    "Resolved",
    "UnmatchedPatternWarning",
    "by_path",
    "check_restored",
    "default_rule",
    "describe",
    "from_portable",
    "guarded",
    "heads_as_matrices",
    "infer",
    "label_params",
    "make_layout",
    "make_view",
    "map_matrices",
    "on_mapped_params",
    "on_matrices",
    "oriented",
    "oriented_sides",
    "per_matrix",
    "refuse_coupling",
    "residual_sets",
    "resolve",
    "scale_by_path",
    "to_portable",
    "with_embeddings",
]
