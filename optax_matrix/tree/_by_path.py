"""Values of parameters that regular expressions choose by path."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from optax_matrix._paths import named_leaves, shown
from optax_matrix.matrices.rules import UnmatchedPatternWarning

Table = list[tuple[re.Pattern, Any]]


def table_of(name: str, values: Any, check: Callable[[str, Any], None]) -> Table:
    """The values of an argument with their expressions, checked.

    Raises:
        ValueError: If it is no dict, an expression does not compile, or ``check``
            refuses a value.
    """
    if not isinstance(values, Mapping):
        raise ValueError(
            f"`{name}` must be a dict of numbers by regular expression, as in "
            f"{{'lora_b': 16.0}}, got {values!r}."
        )
    table = []
    for pattern, value in values.items():
        try:
            expression = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"`{name}` must have regular expressions, got {pattern!r}: {error}."
            ) from None
        check(f"{name}[{pattern!r}]", value)
        table.append((expression, value))
    return table


def chosen(table: Table, path: str) -> Any:
    """The value of the first expression that is found in a path, or None."""
    return next((value for pattern, value in table if pattern.search(path)), None)


def warn_of_typos(where: str, table: Table, params: Any) -> None:
    """Warns of expressions that match no parameter of a tree."""
    paths: Iterable[str] = list(named_leaves(params))
    for pattern, _ in table:
        if paths and not any(map(pattern.search, paths)):
            warnings.warn(
                f"{where} has {pattern.pattern!r}, which matches none of the "
                f"parameters {shown(paths)}",
                UnmatchedPatternWarning,
                stacklevel=3,
            )
