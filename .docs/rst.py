"""Pieces of reStructuredText."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """Headings and rows of cells, which are text; ``kind`` is a class of the style."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = "numbers"

    def rst(self) -> str:
        """The table."""
        head = ["", ".. list-table::", "   :header-rows: 1", f"   :class: {self.kind}"]
        lines = [*head, ""]
        for cells in (self.headings, *self.rows):
            first, *rest = (cell or "\\ " for cell in cells)
            lines += [f"   * - {first}", *(f"     - {cell}" for cell in rest)]
        return "\n".join([*lines, ""])


def title(text: str, line: str = "=") -> str:
    """A heading."""
    return f"{text}\n{line * len(text)}\n"


def from_markdown(text: str) -> str:
    """Code and links of a line of Markdown."""
    text = re.sub(r"`([^`]+)`", r"``\1``", text)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r"`\1 <\2>`__", text)
