"""Reasons that hold more than their text."""

from typing import Any


class ByUse(str):
    """Why a leaf is what it is by its use, with facts for others.

    Attributes:
        kind: What it is, in a word; see `matrices.use.verdicts`.
        heads: The number of heads into which attention divides its outputs, if so.
    """

    kind: str
    heads: int | None

    def __new__(cls, text: str, kind: str, heads: int | None = None) -> Any:
        new = super().__new__(cls, text)
        new.kind, new.heads = kind, heads
        return new

    def __getnewargs__(self) -> tuple:
        return str(self), self.kind, self.heads
