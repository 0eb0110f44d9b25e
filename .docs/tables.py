"""``.. table-of:: costs`` is a table of `runs.TABLES`, ``.. text-of::`` a text."""

from typing import Any

import runs
from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def setup(app: Any) -> dict[str, Any]:
    """Registers the directives."""
    app.add_directive("table-of", TableOf)
    app.add_directive("text-of", TextOf)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class TableOf(SphinxDirective):
    """A table by its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parses the table."""
        return self.parse_text_to_nodes(runs.TABLES[self.arguments[0]]().rst())


class TextOf(SphinxDirective):
    """A text with numbers of the runs, by its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parses the text."""
        return self.parse_text_to_nodes(runs.TEXTS[self.arguments[0]]())
