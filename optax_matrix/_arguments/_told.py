"""How errors show the value of an argument."""

from typing import Any

_LONGEST = 80  # Characters of a value that is shown in full.


def told(value: Any) -> str:
    """A short value in full; an optimizer, an array or a tree by its kind.

    >>> told(-0.5), told({i: i for i in range(100)})
    ('-0.5', 'dict')
    """
    if callable(getattr(value, "init", None)) and hasattr(value, "update"):
        return "an optimizer"
    text = repr(value)
    if len(text) <= _LONGEST and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    is_array = isinstance(shape, tuple)
    return f"an array of shape {shape}" if is_array else type(value).__name__
