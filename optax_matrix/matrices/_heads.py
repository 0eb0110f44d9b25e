"""Output heads as matrices, beside whatever other leaves are."""

import dataclasses
from typing import Any

from optax_matrix.matrices._words import HEADS
from optax_matrix.matrices.rules import PathRule, by_path


def heads_as_matrices(numbers: Any) -> Any:
    """Extends dimension numbers so that output heads, by their names, are matrices.

    Args:
        numbers: Dimension numbers, as in `on_matrices`: None or a rule.

    Returns:
        A rule.

    Raises:
        ValueError: If ``numbers`` cover every leaf already.
    """
    if numbers is not None and not isinstance(numbers, PathRule):
        raise ValueError(
            "`last_layer` must be 'other' beside a tree or function of dimension "
            "numbers, got 'method'; give the head numbers there."
        )
    rule = by_path(include=f"(?i){HEADS}", otherwise=numbers)
    # A model may have no head, so this pattern gives no warning.
    return dataclasses.replace(rule, patterns=numbers.patterns if numbers else ())
