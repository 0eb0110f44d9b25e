"""Which parameters are read from their names alone."""

from collections import defaultdict
from collections.abc import Container

import jax.numpy as jnp

from optax_matrix.matrices._facts import Tree
from optax_matrix.matrices._words import name_of
from optax_matrix.matrices.leaves import layers_of
from optax_matrix.matrices.names import QKV
from optax_matrix.matrices.shares import VOCABULARY


def read_from_names(tree: Tree, doubtful: Container[str]) -> list[str]:
    """The paths of the guesses that neither type, axis names nor convention confirm.

    A leaf with fewer than two axes longer than one can be read in one way only. The
    convention is a ``kernel`` of two axes, unless it is doubtful, or no other leaf
    takes its outputs: then it may be a last layer, or hold several matrices. Keys and
    values may have fewer heads than the queries, so this shows nothing of them.
    """
    layers, takers = layers_of(tree.params), _takers(tree)

    def is_certain(path: str) -> bool:
        leaf = tree.leaves[path]
        floating = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if not floating or sum(n > 1 for n in leaf.shape) < 2:
            return True
        if path in doubtful:
            return False
        if path in layers or tree.is_named_by_axes(path):
            return True
        is_usual = len(leaf.shape) == 2 and name_of(path).name == "kernel"
        view = tree.guesses[path].view
        if not is_usual or view is None or QKV.search(path):
            return is_usual
        return bool(takers[view.rows] - {path})

    return [path for path in tree.guesses if not is_certain(path)]


def _takers(tree: Tree) -> dict[int, set[str]]:
    """The leaves that may take so many inputs, by their number."""
    found = defaultdict(set)
    for path, decision in tree.decisions.items():
        view, shape = decision.view, tree.leaves[path].shape
        if view is not None:
            sizes = view.cols, *(shape[a] for a in view.reduction_axes)
        elif decision.reason in VOCABULARY:
            sizes = sorted(shape)[:-1]
        else:
            sizes = shape if len(shape) > 1 else ()
        for size in sizes:
            found[size].add(path)
    return found
