"""Formulas as MathML, which browsers render without a script or a download.

A displayed formula breaks into lines where the source has wide spaces.
"""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

_LOG = logging.getLogger(__name__)
_PAIRS = (("{", "}"), (r"\begin", r"\end"), (r"\left", r"\right"))


def setup(app: Any) -> dict[str, Any]:
    """Registers the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_mathml(node.astext(), "inline", node))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    parts = [
        '<span class="break"></span>' if part is None else _mathml(part, "block", node)
        for part in _parts(node.astext().strip())
    ]
    translator.body.append(f'<div class="math">{"".join(parts)}</div>')
    raise nodes.SkipNode


def _parts(text: str) -> Iterator[str | None]:
    r"""The formulas between ``\quad`` or ``\qquad``, and None for a new line."""
    part = ""
    for piece in re.split(r"(\\\\|\\q?quad\b)", text):
        is_whole = all(part.count(a) == part.count(b) for a, b in _PAIRS)
        if is_whole and re.fullmatch(r"\\\\|\\q?quad", piece):
            yield part
            if piece == r"\\":
                yield None
            part = ""
        else:
            part += piece
    yield part


def _mathml(text: str, display: str, node: nodes.Node) -> str:
    text = re.sub(r"\\arg(?![a-z])", r"\\mathrm{arg}", text)  # Unknown to latex2mathml.
    try:
        mathml = convert(text, display=display)
    except Exception as error:  # Whatever the parser stumbles over fails the build.
        _LOG.warning("no MathML of %s: %r", text, error, location=node)
        return ""
    if "\\" in mathml or "&amp;" in mathml:
        _LOG.warning("formula without MathML: %s", text, location=node)
    return mathml
