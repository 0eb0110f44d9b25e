"""Results that notebooks show as `print` does."""

from typing import Any


class Printed:
    """A result with a table as its string: IPython shows it in place of the fields."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Called by IPython for the last value of a cell."""
        del cycle
        printer.text(str(self))
