"""Rules for which leaves are matrices, and their exceptions by path."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from optax_matrix._arguments import check_pattern, is_function
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.matrices._siblings import STACK_OF_VECTORS
from optax_matrix.matrices._words import HEADS, name_of
from optax_matrix.matrices.leaves import leaves_in_tree
from optax_matrix.matrices.names import (
    Answer,
    default_full_rule,
    default_rule,
    numbers_of_kernel,
)
from optax_matrix.matrices.tables import read_table
from optax_matrix.matrices.view import is_dimension_numbers


@dataclasses.dataclass(frozen=True)
class PathRule:
    """A rule ``of_leaf(path, leaf) -> (dimension numbers or None, reason)``.

    Called with a parameter tree, it returns the tree of dimension numbers, in the form
    of ``muon_weight_dimension_numbers`` of `optax.contrib.muon`.

    Attributes:
        of_leaf: The rule.
        full: The same rule with embeddings and heads as matrices; None if ``of_leaf``
            is that rule already.
        patterns: Expressions that should match a parameter, with the argument that
            each of them is from.
        paths: Parameters that must be there.
    """

    of_leaf: Callable[[str, Any], Answer]
    full: Callable[[str, Any], Answer] | None = None
    patterns: tuple[tuple[str, re.Pattern], ...] = ()
    paths: tuple[str, ...] = ()

    def __call__(self, params: Any) -> Any:
        """The tree of dimension numbers, None for leaves that are not matrices.

        Raises:
            ValueError: If called as a schedule.
        """
        if not jnp.shape(params) if hasattr(params, "ndim") else False:
            raise ValueError(
                "`dimension_numbers` must get parameters, got a count; "
                "optax.inject_hyperparams calls functions among the arguments as "
                "schedules, so use om.inject_hyperparams."
            )
        told = leaves_in_tree(params, named_leaves(params))
        return map_named(lambda path, _: self.of_leaf(path, told[path])[0], params)


def by_path(
    include: str | None = None,
    exclude: str | None = None,
    numbers: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
    otherwise: Any = None,
) -> PathRule:
    """Overrides the default rule for the leaves whose path matches.

    Args:
        include: Leaves that match this regular expression (`re.search`) are matrices
            whatever their name, in the default view of their shape.
        exclude: Leaves that match get the other optimizer; takes precedence over all
            other arguments.
        numbers: Dimension numbers (or None) by regular expression. The first match
            counts, and takes precedence over `include`. They do not apply to leaves of
            one axis, such as the ``weight`` of a LayerNorm beside that of a linear
            layer; exclude embeddings, heads and scanned norms of that name.
        table: Dimension numbers (or None) by whole path; dicts of their fields will do,
            such as JSON holds. They come after `numbers`.
        otherwise: Rule for all other leaves: a `PathRule` such as `infer` returns; None
            for the default rule.

    Returns:
        A rule for the ``dimension_numbers`` argument of every recipe. An expression
        that matches no parameter may be a typo: `init` gives an
        `UnmatchedPatternWarning`. Where some models lack the layers that are meant,
        ``warnings.simplefilter("ignore", UnmatchedPatternWarning)`` silences it.

    Raises:
        ValueError: If an expression does not compile, or an argument has another type;
            at `init`, if the table names a parameter that is not there.

    Examples:
        The matrix optimizer for embedding and head, too, but not for the last layer:

        >>> rule = by_path(include="embed|lm_head", exclude="layers/11/")
    """
    include_, exclude_ = _compile("include", include), _compile("exclude", exclude)
    given = _given({} if numbers is None else numbers)
    known = read_table({} if table is None else table)
    if otherwise is None:
        otherwise = PathRule(default_rule, default_full_rule)
    if not isinstance(otherwise, PathRule):
        raise ValueError(
            "`otherwise` must be None or a rule, such as `matrices.infer` returns, got "
            f"{type(otherwise).__name__}; `numbers` takes a dict."
        )

    of_leaf = _ByPath(include_, exclude_, given, known, otherwise)
    named = [("include", include_), ("exclude", exclude_)]
    named += [("numbers", pattern) for pattern, _ in given]
    return PathRule(
        of_leaf,
        dataclasses.replace(of_leaf, is_full=True),
        (*((name, p) for name, p in named if p), *otherwise.patterns),
        (*(path for path, _ in known), *otherwise.paths),
    )


@dataclasses.dataclass(frozen=True)
class _ByPath:
    """The rule ``of_leaf(path, leaf)`` of `by_path`."""

    include: re.Pattern | None
    exclude: re.Pattern | None
    numbers: tuple[tuple[re.Pattern | None, Any], ...]
    table: tuple[tuple[str, Any], ...]
    otherwise: PathRule
    is_full: bool = False

    def __call__(self, path: str, leaf: Any) -> Answer:
        if self.exclude and self.exclude.search(path):
            return None, f"excluded by {self.exclude.pattern!r}"
        for pattern, value in self.numbers:
            applies = value is None or len(leaf.shape) >= 2
            if pattern and applies and pattern.search(path):
                return value, f"given for {pattern.pattern!r}"
        if path in self._known:
            return self._known[path], "given by the table"
        if self.include and self.include.search(path) and len(leaf.shape) >= 2:
            value = numbers_of_kernel(path, leaf)[0]
            return value, f"included by {self.include.pattern!r}"
        rule = self.otherwise
        of_leaf = rule.full if self.is_full and rule.full else rule.of_leaf
        return of_leaf(path, leaf)

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        return dict(self.table)


class UnmatchedPatternWarning(UserWarning):
    """An expression of `by_path` matches no parameter."""


def warn_of_unmatched(dimension_numbers: Any, leaves: Mapping[str, Any]) -> None:
    """Warns of expressions that match none of the leaves of a whole tree.

    Raises:
        ValueError: If a table names a leaf that is not there.
    """
    missing = [p for p in getattr(dimension_numbers, "paths", ()) if p not in leaves]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ValueError(
            f"`table` must have paths of the parameters only, got {shown}; it is of "
            "another model, or its parameters were renamed."
        )
    for argument, pattern in getattr(dimension_numbers, "patterns", ()):
        if any(map(pattern.search, leaves)):
            continue
        shown = ", ".join(list(leaves)[:5]) + (", ..." if len(leaves) > 5 else "")
        warnings.warn(
            f"`{argument}` has {pattern.pattern!r}, which matches none of the "
            f"parameters {shown}",
            UnmatchedPatternWarning,
            stacklevel=2,
        )


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
            dimension_numbers, of_leaf=dimension_numbers.full, full=None
        )
    if is_function(dimension_numbers) and not isinstance(dimension_numbers, PathRule):
        return functools.partial(_made_with_embeddings, dimension_numbers)
    return dimension_numbers


def _made_with_embeddings(make: Callable[[Any], Any], params: Any) -> Any:
    found = make(params)
    return found if found is None else with_embeddings(found)


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


def _of_all_but_vectors(path: str, leaf: Any) -> Answer:
    told = getattr(leaf, "other", None)  # By the tree around it.
    if len(leaf.shape) < 2 or name_of(path).is_vector or told == STACK_OF_VECTORS:
        return default_full_rule(path, leaf)
    return numbers_of_kernel(path, leaf)[0], "every leaf but vectors"


def _given(numbers: Any) -> tuple[tuple[re.Pattern | None, Any], ...]:
    """Dimension numbers and their expressions."""
    values = numbers.values() if isinstance(numbers, Mapping) else [numbers]
    known = [value is None or is_dimension_numbers(value) for value in values]
    if not isinstance(numbers, Mapping) or not all(known):
        raise ValueError(
            "`numbers` must be a dict of regular expressions, each with "
            f"MatrixDimensionNumbers or None, got {numbers!r}."
        )
    return tuple((_compile("numbers", k), v) for k, v in numbers.items())


def _compile(name: str, pattern: str | None) -> re.Pattern | None:
    if pattern is None:
        return None
    check_pattern(name, pattern)
    return re.compile(pattern)
