"""Pairs of matrices that are updated with a view of one another, by their paths."""

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from optax_matrix._arguments import check_called, check_pattern
from optax_matrix._paths import shown
from optax_matrix.matrices.rules import UnmatchedPatternWarning
from optax_matrix.matrices.view import MatrixView

Pairs = Mapping[str, str]
"""From the path of the first leaf of each pair to that of the second."""


class PairRule(NamedTuple):
    """Which leaf is the partner of which.

    Attributes:
        table: Expressions, and what replaces them in a path.
        function: A function from a path to that of the partner, or None.
    """

    table: tuple[tuple[re.Pattern, str], ...] = ()
    function: Callable[[str], str | None] | None = None

    def __call__(self, path: str) -> str | None:
        """The path of the partner; None for a leaf that is the first of no pair."""
        if self.function is not None:
            return self.function(path)
        found = (entry for entry in self.table if entry[0].search(path))
        pattern, replacement = next(found, (None, ""))
        return None if pattern is None else pattern.sub(replacement, path)


def as_pair_rule(pairs: Any) -> PairRule:
    """The argument ``pairs`` of `on_matrices` as a rule."""
    if pairs is None:
        return PairRule()
    if isinstance(pairs, Mapping):
        return PairRule(tuple([_entry(*entry) for entry in pairs.items()]))
    if not callable(pairs):
        raise ValueError(
            "`pairs` must be a dict of replacements by regular expression, as in "
            "{'lora_a': 'lora_b'}, or a function from the path of a matrix to that of "
            f"its partner, got {pairs!r}."
        )
    check_called("pairs", pairs)
    function: Any = pairs
    return PairRule(function=function)


def _entry(pattern: Any, replacement: Any) -> tuple[re.Pattern, str]:
    check_pattern("pairs", pattern)
    expression = re.compile(pattern)
    try:
        expression.sub(replacement, "")
    except (re.error, TypeError, IndexError) as error:
        raise ValueError(
            f"`pairs` must have a replacement for {pattern!r} as `re.sub` takes it, "
            f"got {replacement!r}: {error}."
        ) from None
    return expression, replacement


def pairs_of(
    rule: PairRule, leaves: Mapping[str, Any], views: Mapping[str, MatrixView]
) -> dict[str, str]:
    """The pairs among some leaves; raises unless they are one to one and fit."""
    found: dict[str, str] = {}
    firsts: dict[str, str] = {}  # By their partner.
    for path in views:
        if (partner := rule(path)) is None:
            continue
        _check_there(path, partner, leaves, views)
        _check_alike(path, partner, views)
        if (other := firsts.setdefault(partner, path)) != path:
            _refuse(partner, other, path)
        found[path] = partner
    for path, partner in found.items():
        if partner in found:
            _refuse(partner, path, found[partner])
    return found


def _check_there(path: str, partner: str, leaves: Any, views: Any) -> None:
    if partner in views and partner != path:
        return
    what = "no matrix" if partner in leaves else "no parameter here"
    raise ValueError(
        f"`pairs` must lead from a matrix to another one, but {path!r} leads to "
        f"{partner!r}, which is {'itself' if partner == path else what}; correct the "
        "expression, or train both of the pair."
    )


def _check_alike(path: str, partner: str, views: Mapping[str, MatrixView]) -> None:
    """Raises unless matrix i of one leaf can be the partner of matrix i of another."""
    both = [views[path], views[partner]]
    sizes = [tuple([view.shape[a] for a in view.batch_axes]) for view in both]
    counts = [[piece.count for piece in view.pieces] for view in both]
    if sizes[0] == sizes[1] and counts[0] == counts[1]:
        return
    one, other = (
        f"{name!r} with {view} on batch axes of {size}"
        for name, view, size in zip((path, partner), both, sizes, strict=True)
    )
    raise ValueError(
        f"`pairs` must join leaves of equally many matrices in one order, got {one} "
        f"and {other}; give both the same heads, layers and experts in "
        "`dimension_numbers`."
    )


def _refuse(path: str, one: str, other: str) -> None:
    raise ValueError(
        f"`pairs` must be one to one, but {path!r} is paired with {one!r} and with "
        f"{other!r}; name each pair once, in one direction, by narrower expressions."
    )


def warn_of_unmatched_pairs(rule: PairRule, views: Mapping[str, MatrixView]) -> None:
    """Warns of expressions that match no matrix of a tree."""
    for pattern, _ in rule.table:
        if views and not any(map(pattern.search, views)):
            warnings.warn(
                f"`pairs` has {pattern.pattern!r}, which matches none of the matrices "
                f"{shown(views)}",
                UnmatchedPatternWarning,
                stacklevel=2,
            )
