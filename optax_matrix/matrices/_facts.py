"""Facts about a whole tree, for the tests that may doubt how its leaves are read."""

import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from optax_matrix._paths import named_leaves
from optax_matrix.matrices._infer import infer
from optax_matrix.matrices._scopes import Shape, scopes_of
from optax_matrix.matrices._siblings import Siblings
from optax_matrix.matrices._words import own_names
from optax_matrix.matrices.boxes import boxes_of
from optax_matrix.matrices.decisions import Decisions, decide, views_of
from optax_matrix.matrices.shares import VOCABULARY
from optax_matrix.matrices.view import MatrixView


class Tree:
    """What tests ask of the whole tree; each answer is found once.

    Attributes:
        params: The parameters.
        leaves: Its leaves, by path.
        decisions: What was decided on them, by path.
        guesses: Those of the decisions that names and shapes made.
    """

    def __init__(self, params: Any, decisions: Decisions):
        self.params, self.leaves = params, named_leaves(params)
        self.decisions = decisions
        self.guesses = {path: d for path, d in decisions.items() if d.is_guess}
        self.siblings = Siblings(self.leaves)
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
        if path not in self.boxes:
            return False
        return self.by_axis_names[path].reason != self.guesses[path].reason

    @functools.cached_property
    def views(self) -> Mapping[str, MatrixView]:
        """The views of the guesses that are matrices."""
        return views_of(self.guesses)

    @functools.cached_property
    def lone_dense(self) -> str | None:
        """The path of the only matrix of two axes among convolutions."""
        views = self.views
        dense = [path for path, view in views.items() if len(view.shape) == 2]
        convolutions = sum(len(view.reduction_axes) > 1 for view in views.values())
        return dense[0] if convolutions >= 3 and len(dense) == 1 else None

    @functools.cached_property
    def longest(self) -> tuple[str, int]:
        """The path of the matrix with the longest side, and the next longest side."""
        length = lambda path: max(self.views[path].rows, self.views[path].cols)
        *others, last = sorted(self.views, key=length)
        return last, length(others[-1]) if len(others) >= 4 else 0

    @functools.cached_property
    def count_of_sides(self) -> Counter[tuple[int, ...]]:
        """How many leaves of one matrix have which sides, the shorter one first."""
        return Counter(sides_of(v) for v in self.views.values() if v.batch == 1)

    @functools.cached_property
    def vocabularies(self) -> dict[tuple[int, ...], str]:
        """The embeddings and output heads, by their sides."""
        named = [p for p, d in self.guesses.items() if d.reason in VOCABULARY]
        return {tuple(sorted(self.leaves[path].shape)): path for path in named}

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


def sides_of(view: MatrixView) -> tuple[int, int]:
    """The sides of a matrix, the shorter one first."""
    short, long = sorted((view.rows, view.cols))
    return short, long
