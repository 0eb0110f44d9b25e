"""States of the wrappers of this package, found inside of the state of an optimizer."""

from typing import Any

import jax

from optax_matrix.weights._stochastic_rounding import StochasticRoundingState
from optax_matrix.weights._store_remainders import StoreRemaindersState

ROUNDED = {
    StochasticRoundingState: "stochastic_rounding",
    StoreRemaindersState: "store_remainders",
}
"""Those that round weights."""


def nodes(tree: Any, *kinds: type) -> list[Any]:
    """The outermost parts of a tree of some types."""
    is_leaf = lambda x: isinstance(x, kinds)
    return [x for x in jax.tree.leaves(tree, is_leaf=is_leaf) if is_leaf(x)]
