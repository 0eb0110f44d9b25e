"""Which parameters are read from their names alone."""

from collections.abc import Container
from typing import Any

import jax.numpy as jnp

from optax_matrix.matrices._facts import Tree
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.leaves import layers_of
from optax_matrix.matrices.names import ONE_INPUT, is_excluded


def read_from_names(tree: Tree, doubtful: Container[str]) -> list[str]:
    """The paths of the guesses that neither type, axis names nor convention confirm.

    A leaf with fewer than two axes longer than one can be read in one way only. The
    convention is a ``kernel`` of two axes, unless it is doubtful or an end, which may
    be a last layer or hold several matrices.
    """
    layers = layers_of(tree.params)

    def is_usual(path: str, leaf: Any) -> bool:
        if len(leaf.shape) != 2 or name_of(path).name != "kernel":
            return False
        is_matrix = path in tree.views
        return not tree.is_end(path) if is_matrix else is_excluded(path, leaf)

    def is_certain(path: str) -> bool:
        leaf = tree.leaves[path]
        floating = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if not floating or sum(n > 1 for n in leaf.shape) < 2:
            return True
        if path in doubtful or tree.guesses[path].reason == ONE_INPUT:
            return False
        return path in layers or tree.is_named_by_axes(path) or is_usual(path, leaf)

    return [path for path in tree.guesses if not is_certain(path)]
