"""The leaves of a tree by the modules that they are in."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from optax_matrix._paths import prefixes

Shape = tuple[int, ...]


class Scopes:
    """The leaves of each scope, a module with all inside it, found in one pass.

    Attributes:
        members: The paths of the leaves of each scope, in the order of the tree.
    """

    def __init__(self, shapes: Mapping[str, Shape]):
        self.members: dict[str, list[str]] = defaultdict(list)
        self._starting: dict[tuple[str, Shape], list[str]] = defaultdict(list)
        for path, shape in shapes.items():
            for scope in scopes_of(path):
                self.members[scope].append(path)
                for n in range(len(shape)):
                    self._starting[scope, shape[: n + 1]].append(path)

    def starting(self, scope: str, front: Shape) -> Sequence[str]:
        """The leaves of a scope whose first axes have these sizes."""
        kept = self._starting if front else {(scope, front): self.members[scope]}
        return kept.get((scope, front), ())

    def all_start(self, scope: str, front: Shape) -> bool:
        """Whether these are all leaves of the scope."""
        return len(self.starting(scope, front)) == len(self.members[scope])


@functools.lru_cache(maxsize=1 << 16)
def scopes_of(path: str) -> tuple[str, ...]:
    """The paths above a leaf, the nearest first; the root is ``""``."""
    return (*prefixes(path)[1:], "")
