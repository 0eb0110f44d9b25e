"""A parameter tree as stacks of equal matrices, on which blocks work.

`make_layout` groups equal matrices of all leaves into stacks ``(batch, out, in)``. A
`Layout` is their static description: the name of each stack, its members, their order,
the side of the residual stream. A `Placement` decides on which devices stacks live.
`map_matrices` runs a function of stacks on a tree.

Stacking copies matrices, so a stack has at most ``STACK_ELEMENTS`` numbers;
``on_matrices(..., max_batch=...)`` sets another bound.
"""

from optax_matrix.stacks.layout import (
    STACK_ELEMENTS,
    Group,
    Layout,
    make_layout,
)
from optax_matrix.stacks.map_matrices import map_matrices
from optax_matrix.stacks.orientation import oriented_sides
from optax_matrix.stacks.placement import Placement

__all__ = [
    "STACK_ELEMENTS",
    "Group",
    "Layout",
    "Placement",
    "make_layout",
    "map_matrices",
    "oriented_sides",
]
