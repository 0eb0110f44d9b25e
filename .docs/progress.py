"""One line that says how far the build is."""

import sys
from typing import Any

_STEP = 10  # Percent between two lines where the output is no terminal.


def setup(app: Any) -> dict[str, Any]:
    """Counts pages as they are read and written."""
    for event, verb in (("source-read", "read"), ("html-page-context", "written")):
        app.connect(event, _Counter(verb))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class _Counter:
    """Counts the calls of an event."""

    def __init__(self, verb: str) -> None:
        self._verb, self._count, self._shown = verb, 0, -1

    def __call__(self, app: Any, *arguments: Any) -> None:
        del arguments
        self._count += 1
        total = max(len(app.env.found_docs), self._count)
        percent = 100 * self._count // total
        if sys.stderr.isatty():
            end = "\n" if self._count == total else ""
            print(f"\r{self._text(total)}", end=end, file=sys.stderr, flush=True)
        elif percent // _STEP > self._shown:
            self._shown = percent // _STEP
            print(self._text(total), file=sys.stderr, flush=True)

    def _text(self, total: int) -> str:
        return f"docs: {self._count} of {total} pages {self._verb}"
