"""Facts about a whole tree, for the tests that may doubt how its leaves are read."""

import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._infer import infer
from optax_matrix.matrices._scopes import Shape, scopes_of
from optax_matrix.matrices._siblings import Siblings
from optax_matrix.matrices._words import own_names
from optax_matrix.matrices.boxes import boxes_of
from optax_matrix.matrices.decisions import Decisions, decide, views_of
from optax_matrix.matrices.leaves import layers_of
from optax_matrix.matrices.names import ONE_INPUT, QKV, is_excluded
from optax_matrix.matrices.shares import VOCABULARY
from optax_matrix.matrices.view import MatrixView


class Tree:
    """What tests ask of the whole tree; each answer is found once.

    Attributes:
        params: The parameters.
        leaves: Its leaves, by path.
        decisions: What was decided on them, by path.
        guesses: Those of the decisions that names and shapes made.
        layers: What the types of layers say, by path.
    """

    def __init__(self, params: Any, decisions: Decisions):
        self.params, self.leaves = params, named_leaves(params)
        self.decisions = decisions
        self.guesses = {path: d for path, d in decisions.items() if d.is_guess}
        self.siblings, self.layers = Siblings(self.leaves), layers_of(params)
        self._kernels = functools.cache(self._find_kernels)
        self._on_axis_one = functools.cache(self._find_on_axis_one)

    @functools.cached_property
    def boxes(self) -> Mapping[str, Any]:
        """The boxes with axis names, by path."""
        return boxes_of(self.params)

    @functools.cached_property
    def by_axis_names(self) -> Decisions:
        """The decisions by the axis names of the parameters."""
        return decide(self.params, infer(self.params))

    def is_named_by_axes(self, path: str) -> bool:
        """Whether the names of the axes of a leaf tell how to read it."""
        return path in self.boxes and not self.by_axis_names[path].is_guess

    @functools.cached_property
    def views(self) -> Mapping[str, MatrixView]:
        """The views of the leaves that are matrices."""
        return views_of(self.decisions)

    def is_certain(self, path: str) -> bool:
        """Whether type, axis names or convention confirm a guess.

        Fewer than two axes longer than one can be read in one way only. The convention
        is a ``kernel`` of two axes, unless it is an end: then it may be a last layer,
        or hold several matrices.
        """
        leaf, guess = self.leaves[path], self.guesses[path]
        is_float = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if not is_float or sum(n > 1 for n in leaf.shape) < 2:
            return True
        if path in self.layers or self.is_named_by_axes(path):
            return guess.reason != ONE_INPUT
        if len(leaf.shape) > 2 or self.siblings.names[path].name != "kernel":
            return False
        is_matrix = guess.view is not None
        return not self.is_end(path) if is_matrix else is_excluded(path, leaf)

    def is_end(self, path: str) -> bool:
        """Whether there are other matrices, and no other leaf takes its outputs.

        Keys and values may have fewer heads than the queries, so this shows nothing of
        them. What comes after a dense layer is no convolution.
        """
        view = self.decisions[path].view
        if view is None or len(self.views) == 1 or QKV.search(path):
            return False
        takers = self._takers[len(view.shape) == 2]
        return takers[view.rows] == (view.rows in self._takes(path))

    @functools.cached_property
    def _takers(self) -> tuple[Counter[int], Counter[int]]:
        """How many leaves take so many inputs; all, and all but convolutions."""
        takes = {path: self._takes(path) for path in self.decisions}
        plain = [
            p for p in takes if p not in self.views or len(self.leaves[p].shape) < 4
        ]
        count = lambda paths: Counter(size for p in paths for size in takes[p])
        return count(takes), count(plain)

    def _takes(self, path: str) -> set[int]:
        """How many inputs a leaf may take."""
        decision, shape = self.decisions[path], self.leaves[path].shape
        if (view := decision.view) is not None:  # Most axes are channels.
            return {view.cols, max(shape[a] for a in view.reduction_axes)}
        if decision.is_vector:
            return set()
        if decision.reason in VOCABULARY:
            return {*(shape if "head" in decision.reason else shape[-1:])}
        return {max(shape)}

    def layers_on_axis_one(self, path: str) -> int | None:
        """The size of axis 1 if all leaves of a scope have it, and not one axis 0."""
        found = map(self._on_axis_one, scopes_of(path))
        return next((size for size in found if size is not None), None)

    def _find_on_axis_one(self, scope: str) -> int | None:
        members = self.siblings.scopes.members[scope]
        shapes = [self.siblings.shapes[path] for path in members]
        if sum(len(s) > 2 for s in shapes) < 2 or any(len(s) < 2 for s in shapes):
            return None
        kernels = {s[0] for s in shapes if len(s) > 2}
        same = len({s[1] for s in shapes}) == 1 and len(kernels) > 1
        return shapes[0][1] if same else None

    def beside(self, path: str, named: re.Pattern | None = None) -> Counter[Shape]:
        """How many other kernels have which shape, in the smallest scope with some.

        With ``named``, only those are counted whose names match.
        """
        shape = self.siblings.shapes[path]
        for scope in scopes_of(path):
            own = Counter([shape] if self._is_kernel(path) else [])
            if (self._kernels(scope, None) - own).total():
                is_meant = named is None or named.search(own_names(path))
                rest = self._kernels(scope, named)
                return rest - own if is_meant else rest
        return Counter()

    def _find_kernels(self, scope: str, named: re.Pattern | None) -> Counter[Shape]:
        kernels = filter(self._is_kernel, self.siblings.scopes.members[scope])
        is_meant = lambda p: named is None or named.search(own_names(p))
        return Counter(self.siblings.shapes[p] for p in kernels if is_meant(p))

    def _is_kernel(self, path: str) -> bool:
        is_vector = self.siblings.names[path].is_vector
        return len(self.siblings.shapes[path]) >= 2 and not is_vector
