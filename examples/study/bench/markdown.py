"""Tables in Markdown."""

from collections.abc import Sequence


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; every row has as many cells as there are headings."""
    every = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)
