"""Which state belongs to whole matrices, and which to their entries, rows or columns.

State that a block keeps in another frame (a subspace, an eigenbasis, permuted rows)
depends on all entries of a matrix, and so do the arrays that define the frame.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from optax_matrix._paths import group_of, leaves_with_keys
from optax_matrix.quantization.packing import QuantizedState
from optax_matrix.stacks.layout import EMPTY_LAYOUT, Group, Layout
from optax_matrix.transforms.low_rank import (
    OrthogonalizeLowRankState,
    ProjectLowRankState,
    ScaleByTrackedAdamState,
)
from optax_matrix.transforms.rotation import (
    InEigenbasisState,
    RotateSharedState,
    RotateState,
)
from optax_matrix.transforms.second_moments import PreconditionState
from optax_matrix.transforms.stochastic_primitives import SpoState
from optax_matrix.tree.state import is_state

# Fields that belong to whole matrices, by the state that has them.
_SHARED = {
    InEigenbasisState: {"rotation", "gram", "base_state", "spectrum"},
    OrthogonalizeLowRankState: {"right"},
    PreconditionState: {"gram", "root"},
    ProjectLowRankState: {"basis", "inner_state", "combine_state"},
    QuantizedState: {"scales"},
    RotateSharedState: {"rotation", "base_state"},
    RotateState: {"rotation", "base_state"},
    ScaleByTrackedAdamState: {"vectors", "mu", "root"},
    SpoState: set(SpoState._fields),
}
_LABELS = dict.fromkeys(("method", "manifest", "sides"), EMPTY_LAYOUT)  # No state.


class StateLeaf(NamedTuple):
    """A leaf of a state.

    Attributes:
        keys: Where it is.
        is_free: Whether it is outside of what `on_matrices` keeps for matrices.
        group: Its stack; None if it belongs to none.
        is_shared: Whether it belongs to whole matrices.
    """

    keys: tuple
    is_free: bool
    group: Group | None
    is_shared: bool


def leaves_of(
    state: Any,
    layouts: dict[frozenset[str], Layout],
    above: tuple = (),
    layout: Layout | None = None,
    shared: bool = False,
) -> Iterator[StateLeaf]:
    """What is known of each leaf of a state, in the order of its leaves.

    ``layouts`` are found by the names of their stacks.
    """
    is_node = lambda x: is_state(x) or type(x) in _SHARED
    for keys, node in leaves_with_keys(state, is_node):
        keys = above + keys
        if not is_node(node):
            group = None if layout is None else group_of(keys, layout.groups)
            yield StateLeaf(keys, layout is None, group, shared)
            continue
        for field, part in zip(node._fields, node, strict=True):
            inside = (*keys, jax.tree_util.GetAttrKey(field))
            if not is_state(node):
                partly = shared or field in _SHARED[type(node)]
                yield from leaves_of(part, layouts, inside, layout, partly)
            else:
                own = layouts[frozenset(node.manifest)]
                own = {"after": None, "other": None, **_LABELS}.get(field, own)
                yield from leaves_of(part, layouts, inside, own)
