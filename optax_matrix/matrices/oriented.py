"""Dimension numbers whose residual sides are those of another rule."""

import dataclasses
from typing import Any

from optax_matrix.matrices._words import is_embedding, without_index
from optax_matrix.matrices.names import HEAD, QKV, UP
from optax_matrix.matrices.view import Side

_EXCEPT = {
    "except_up": UP.search,
    "except_qkv": QKV.search,
    "except_embeddings": lambda path: is_embedding(path) or HEAD.search(path),
}


@dataclasses.dataclass(frozen=True)
class Oriented:
    """The same matrices, with a residual side by one of the rules of ARO's Fig. 19.

    Attributes:
        numbers: Dimension numbers in any form.
        rule: ``"except_up"``, ``"except_qkv"`` or ``"except_embeddings"``.
    """

    numbers: Any
    rule: str

    @property
    def patterns(self) -> tuple:
        """The expressions of `numbers`; see `PathRule`."""
        return getattr(self.numbers, "patterns", ())

    def side(self, path: str) -> Side:
        """The side to rotate: the input; of embeddings the width; else for exceptions.

        The paper stores embeddings as (vocabulary, width), so that a transposition
        brings their width to the side that rotates.
        """
        path = without_index(path)
        right, left = ("out", "in") if is_embedding(path) else ("in", "out")
        return left if _EXCEPT[self.rule](path) else right


def oriented(dimension_numbers: Any, orientation: str) -> Any:
    """Dimension numbers with the residual sides that an exception of `aro` asks for."""
    if orientation not in _EXCEPT:
        return dimension_numbers
    return Oriented(dimension_numbers, orientation)
