"""The leaves of a tree, each with what the tree around it says of it."""

from collections.abc import Mapping
from typing import Any

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._layers import layers_of
from optax_matrix.matrices._siblings import Leaf, Siblings


def leaves_in_tree(params: Any, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves with what the whole tree says of them; scalars and vectors as they are."""
    every = named_leaves(params) | dict(leaves)
    arrays = {path: x for path, x in every.items() if hasattr(x, "shape")}
    layers, siblings = layers_of(params), Siblings(arrays)

    def of(path: str, leaf: Any) -> Any:
        if len(getattr(leaf, "shape", ())) < 2:
            return leaf
        return Leaf(
            tuple(leaf.shape),
            leaf.dtype,
            layers.get(path),
            siblings.why_other(path),
            siblings.stack(path),
            siblings.is_transposed(path),
            siblings.axes(path),
        )

    return {path: of(path, leaf) for path, leaf in leaves.items()}
