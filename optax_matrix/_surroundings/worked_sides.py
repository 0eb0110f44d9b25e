"""The sides of matrices that blocks work on, which the state of a step names.

The state of a square matrix has the same shapes whether its rows or its columns are
rotated or projected, so only a name can distinguish them. Each block records which
sides it works on (`note_sides`). `on_matrices` stores them with the state in `init`,
and `update` refuses another side.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from optax_matrix._paths import key_name
from optax_matrix._surroundings import here


class WorkedSides:
    """The sides of each stack, in the order of the blocks.

    Attributes:
        found: For each stack the sides that blocks have named so far.
    """

    def __init__(self, stacks: Collection[str], held: Mapping[str, str] | None = None):
        """Sides of some stacks; with ``held`` they must be those, by stack."""
        self._stacks, self._held = stacks, held
        self.found: dict[str, list[str]] = {}

    def labels(self) -> dict[str, str]:
        """The sides of each stack as one name, such as ``in`` or ``out+in``."""
        return {name: "+".join(sides) for name, sides in self.found.items()}

    def add(self, stack: str, side: str) -> None:
        """Adds a side; raises if the state was made for another one."""
        if stack not in self._stacks:
            return
        known = self.found.setdefault(stack, [])
        if side not in known:
            known.append(side)
            self._check(stack, lambda held: held.split("+")[: len(known)] == known)

    def check_all(self) -> None:
        """Raises unless blocks worked on all sides that the state was made for."""
        for stack, label in self.labels().items():
            self._check(stack, lambda held, label=label: held == label)

    def _check(self, stack: str, fits: Callable[[str], bool]) -> None:
        if self._held is None or fits(held := self._held.get(stack, "")):
            return
        raise ValueError(
            f"`state` must be of the sides that blocks work on, but for stack {stack} "
            f"it is of {held or 'none'!r}, and blocks work on "
            f"{'+'.join(self.found[stack])!r}; restore `side` or `orientation`, or "
            "start afresh with tx.init(params)."
        )


def note_sides(sides: Any) -> None:
    """Records which side of each stack a block works on; a tree of names."""
    if (worked := here().sides) is None:
        return
    for keys, side in jax.tree.leaves_with_path(sides):
        for name in map(key_name, keys):
            worked.add(name, side)
