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

There is no mathematics here.
"""

from optax_matrix.layout._default_rule import HEADS, default_rule
from optax_matrix.layout._describe import Description, describe
from optax_matrix.layout._dimension_numbers import MatrixDimensionNumbers
from optax_matrix.layout._infer import infer
from optax_matrix.layout._keep_sharding import KeepSharding
from optax_matrix.layout._labels import label_params
from optax_matrix.layout._layout import EMPTY_LAYOUT, Layout, make_layout
from optax_matrix.layout._map_matrices import map_matrices
from optax_matrix.layout._on_mapped_params import on_mapped_params
from optax_matrix.layout._on_matrices import OnMatricesState, on_matrices
from optax_matrix.layout._per_matrix import per_matrix
from optax_matrix.layout._portable import check_restored, from_portable, to_portable
from optax_matrix.layout._probe import refuse_coupling
from optax_matrix.layout._residual_sets import SHARINGS, residual_sets
from optax_matrix.layout._rules import (
    PathRule,
    Resolved,
    by_path,
    resolve,
    with_embeddings,
)
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
    "Group",
    "KeepSharding",
    "Layout",
    "MatrixDimensionNumbers",
    "MatrixView",
    "Member",
    "OnMatricesState",
    "PathRule",
    "Placement",
    "Resolved",
    "by_path",
    "check_restored",
    "default_rule",
    "describe",
    "from_portable",
    "infer",
    "label_params",
    "make_layout",
    "make_view",
    "map_matrices",
    "on_mapped_params",
    "on_matrices",
    "per_matrix",
    "refuse_coupling",
    "residual_sets",
    "resolve",
    "to_portable",
    "with_embeddings",
]
