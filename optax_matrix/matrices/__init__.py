"""Which leaves of a parameter tree are matrices, and how each is seen.

Papers write about one matrix of shape ``(out, in)``. A model is a tree of kernels
``(in, out)``, attention kernels with heads, stacked layers, experts, convolutions and
biases. A rule (`by_use`, `by_path`, `infer`, `default_rule`) decides for each leaf
whether it is a matrix, and which of its axes are outputs and inputs
(`MatrixDimensionNumbers`). A `MatrixView` presents the leaf as matrices
``(batch, out, in)``.

`by_use` reads this from the forward pass of the model:

>>> import jax, jax.numpy as jnp, optax
>>> import optax_matrix as om
>>> params = {"up": jnp.ones((8, 4)), "down": jnp.ones((4, 8)), "out": jnp.ones((3, 4))}
>>> def loss(params, batch):
...     x = batch + params["down"] @ jnp.tanh(params["up"] @ batch)
...     return (params["out"] @ x).sum()
>>> rule = om.matrices.by_use(loss, params, jnp.ones((4, 2)))
>>> print(rule)
leaf  shape   use                 verdict
down  (4, 8)  product (1) to (0)  matrix (1, 0, residual='out')
out   (3, 4)  product (1) to (0)  last layer: nothing learned comes after
up    (8, 4)  product (1) to (0)  matrix (1, 0, residual='in')
>>> tx = om.muon(0.02, dimension_numbers=rule)

If the forward pass does not show what a leaf is, an `UnclearUseWarning` contains the
argument to paste. Save ``rule.table()`` beside the state, and pass it to `by_use` as
``table`` when you resume a run. Then another version of the library uses the same axes.

Without a model, the default rule decides by path, shape and dtype of a leaf and of
those around it, the same way at ``init`` and at ``update``. Embeddings, output heads,
routers, norms, biases, tables and depthwise convolutions are recognized and left to the
other optimizer, and so are vectors ``(layers, n)`` of stacked layers. Kernels are
``(..., in, out)`` as in Flax, with layers and experts in front; layers of Equinox are
``(out, in)``. `init` counts what it has read from names alone in a
`ReadFromNamesWarning`, which `by_names` silences. It also warns of doubtful decisions
(`DoubtfulMatrixWarning`), and if less than a third of the parameters, without
embeddings and head, are in matrices. `describe` shows the decision for every leaf, and
the share of each optimizer:

>>> params = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
>>> print(om.describe(params, matrix="muon", other="adamw"))
leaf       shape   view        group  optimizer  why
up/bias    (8,)    -           -      adamw      a vector
up/kernel  (4, 8)  1x (8, 4)   ...    muon       kernel (in, out)
80% muon, 0% embeddings and heads, 20% adamw

If the tree does not show a layout (layers in an axis other than the first, flat fused
kernels), give the axes by ``dimension_numbers``, an argument of every recipe:

>>> from optax_matrix.matrices import MatrixDimensionNumbers, by_path
>>> by_name = by_path(include="embed", exclude="layers/11/")
>>> numbers = {"weight": MatrixDimensionNumbers(1, 0)}
>>> torch = by_path(numbers=numbers, exclude="embed|lm_head")
>>> fused = MatrixDimensionNumbers(output_sections=(512, 128, 128))
>>> qkv = by_path(numbers={"qkv": fused})
>>> optax_numbers = optax.contrib.MuonDimensionNumbers(0, (1, 2))  # Also accepted.
>>> tx = om.muon(0.02, dimension_numbers=torch)

``MatrixDimensionNumbers(reduction_axis, output_axis)`` names the two axes of the
matrix; all other axes count matrices. ``output_sections=8`` treats the eight heads of a
flat kernel as eight matrices. `split_heads`, or ``heads="split"`` in a recipe, does so
for all queries, keys and values (Muon per head). `by_path` matches regular expressions.
`infer` reads the logical axis names of a model (embed, heads, mlp, vocab, ...), and
from them the side of a matrix on the residual stream, which `recipes.aro` uses. The
default rule finds that side only by the usual names. For your own partition of the
leaves, `label_params` returns labels for `optax.partition`. `all_but_vectors` is the
mask of the leaves that recipes decay.

**LoRA.** Both factors (``lora_a``, ``lora_b``) are matrices. LoRA+ trains B at a larger
rate than A, which `scale_by_path` does. For B alone, exclude A:

>>> only_b = by_path(exclude="lora_a")
>>> faster_b = optax.chain(om.muoneq(1e-4), om.scale_by_path({"lora_b": 16.0}))
"""

from optax_matrix.matrices._infer import infer
from optax_matrix.matrices._labels import label_params
from optax_matrix.matrices._split_heads import split_heads
from optax_matrix.matrices.doubts import DoubtfulMatrixWarning, ReadFromNamesWarning
from optax_matrix.matrices.names import default_rule
from optax_matrix.matrices.rules import (
    PathRule,
    UnmatchedPatternWarning,
    by_names,
    by_path,
)
from optax_matrix.matrices.use.question import ChangedUseWarning, UnclearUseWarning
from optax_matrix.matrices.use.rule import UseRule, by_use
from optax_matrix.matrices.vectors import all_but_vectors
from optax_matrix.matrices.view import MatrixDimensionNumbers, MatrixView
from optax_matrix.matrices.wider import heads_as_matrices, with_embeddings

__all__ = [
    "ChangedUseWarning",
    "DoubtfulMatrixWarning",
    "MatrixDimensionNumbers",
    "MatrixView",
    "PathRule",
    "ReadFromNamesWarning",
    "UnclearUseWarning",
    "UnmatchedPatternWarning",
    "UseRule",
    "all_but_vectors",
    "by_names",
    "by_path",
    "by_use",
    "default_rule",
    "heads_as_matrices",
    "infer",
    "label_params",
    "split_heads",
    "with_embeddings",
]
