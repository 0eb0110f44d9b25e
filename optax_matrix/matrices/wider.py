"""Rules by which embeddings and output heads are matrices, too."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from optax_matrix._arguments import is_function
from optax_matrix.matrices._siblings import STACK_OF_VECTORS
from optax_matrix.matrices._words import HEADS, name_of
from optax_matrix.matrices.names import (
    Answer,
    Guess,
    default_full_rule,
    numbers_of_kernel,
)
from optax_matrix.matrices.rules import PathRule, by_path


def with_embeddings(dimension_numbers: Any) -> Any:
    """Dimension numbers for which embeddings and heads are matrices, too.

    Args:
        dimension_numbers: As in `on_matrices`.

    Returns:
        For None, a rule for which every leaf with two axes is a matrix, but stacks of
        vectors; for a rule, the same rule with embeddings and heads as matrices, also
        where a function makes it; a tree, which covers every leaf already, as it is.
    """
    if dimension_numbers is None:
        return PathRule(_of_all_but_vectors)
    if isinstance(dimension_numbers, PathRule) and dimension_numbers.full:
        return dataclasses.replace(
            dimension_numbers,
            of_leaf=dimension_numbers.full,
            full=None,
            with_head=None,
        )
    if is_function(dimension_numbers) and not isinstance(dimension_numbers, PathRule):
        return functools.partial(_made_with_embeddings, dimension_numbers)
    return dimension_numbers


def _made_with_embeddings(make: Callable[[Any], Any], params: Any) -> Any:
    found = make(params)
    return found if found is None else with_embeddings(found)


def heads_as_matrices(numbers: Any) -> Any:
    """Extends dimension numbers so that output heads are matrices.

    Which leaves are heads is told by their names, or by their use if the numbers are
    those of `by_use`.

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
    if numbers is not None and numbers.with_head is not None:
        return dataclasses.replace(numbers, of_leaf=numbers.with_head, with_head=None)
    rule = by_path(include=f"(?i){HEADS}", otherwise=numbers)
    # A model may have no head, so this pattern gives no warning.
    return dataclasses.replace(rule, patterns=numbers.patterns if numbers else ())


def _of_all_but_vectors(path: str, leaf: Any) -> Answer:
    told = getattr(leaf, "other", None)  # By the tree around it.
    if len(leaf.shape) < 2 or name_of(path).is_vector or told == STACK_OF_VECTORS:
        return default_full_rule(path, leaf)
    return numbers_of_kernel(path, leaf)[0], Guess("every leaf but vectors")
