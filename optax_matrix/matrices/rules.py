"""Which leaves are matrices: rules, and every other form of ``dimension_numbers``."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix.matrices._default_rule import (
    Decision,
    default_full_rule,
    default_rule,
    numbers_of_kernel,
)
from optax_matrix.matrices.dimension_numbers import Side, is_dimension_numbers
from optax_matrix.matrices.oriented import Oriented
from optax_matrix.matrices.paths import map_named, named_leaves, path_name
from optax_matrix.matrices.view import MatrixView, make_view


@dataclasses.dataclass(frozen=True)
class PathRule:
    """A rule ``decide(path, leaf) -> (dimension numbers or None, reason)``.

    Called with a parameter tree, it returns the tree of dimension numbers, in the form
    of ``muon_weight_dimension_numbers`` of `optax.contrib.muon`.

    Attributes:
        decide: The rule.
        full: The same rule with embeddings and heads as matrices; None if ``decide``
            is that rule already.
        patterns: Expressions that should match a parameter, with the argument that
            each of them is from.
    """

    decide: Callable[[str, Any], Decision]
    full: Callable[[str, Any], Decision] | None = None
    patterns: tuple[tuple[str, re.Pattern], ...] = ()

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
        return map_named(lambda path, leaf: self.decide(path, leaf)[0], params)


def by_path(
    include: str | None = None,
    exclude: str | None = None,
    numbers: Mapping[str, Any] | None = None,
    otherwise: Any = None,
) -> PathRule:
    """Overrides the default rule for the leaves whose path matches.

    Args:
        include: Leaves that match this regular expression (`re.search`) are matrices
            whatever their name, in the default view of their shape.
        exclude: Leaves that match get the other optimizer; takes precedence over all
            other arguments.
        numbers: Dimension numbers (or None) by regular expression. The first match
            counts, and takes precedence over `include`. They do not apply to vectors,
            such as the ``weight`` of a LayerNorm beside that of a linear layer.
        otherwise: Rule for all other leaves: a `PathRule` such as `infer` returns;
            None for the default rule.

    Returns:
        A rule for the ``dimension_numbers`` argument of every recipe. An expression
        that matches no parameter may be a typo: `init` gives an
        `UnmatchedPatternWarning`. Where some models lack the layers that are meant,
        ``warnings.simplefilter("ignore", UnmatchedPatternWarning)`` silences it.

    Raises:
        ValueError: If an expression does not compile.

    Examples:
        The matrix optimizer for embedding and head, too, but not for the last layer:

        >>> rule = by_path(include="embed|lm_head", exclude="layers/11/")
    """
    include_, exclude_ = _compile("include", include), _compile("exclude", exclude)
    table = [(_compile("numbers", k), v) for k, v in (numbers or {}).items()]
    if otherwise is None:
        otherwise = PathRule(default_rule, default_full_rule)

    def decide(path: str, leaf: Any, fallback: Any = otherwise.decide) -> Decision:
        if exclude_ and exclude_.search(path):
            return None, f"excluded by {exclude!r}"
        for pattern, value in table:
            applies = value is None or len(leaf.shape) >= 2
            if pattern and applies and pattern.search(path):
                return value, f"given for {pattern.pattern!r}"
        if include_ and include_.search(path) and len(leaf.shape) >= 2:
            value = numbers_of_kernel(path, leaf.shape)[0]
            return value, f"included by {include!r}"
        return fallback(path, leaf)

    named = [("include", include_), ("exclude", exclude_)]
    named += [("numbers", pattern) for pattern, _ in table]
    return PathRule(
        decide,
        partial(decide, fallback=otherwise.full or otherwise.decide),
        (*((name, p) for name, p in named if p), *otherwise.patterns),
    )


class UnmatchedPatternWarning(UserWarning):
    """An expression of `by_path` matches no parameter."""


def warn_of_unmatched(dimension_numbers: Any, leaves: Mapping[str, Any]) -> None:
    """Warns of expressions that match none of the leaves of a whole tree."""
    for argument, pattern in getattr(dimension_numbers, "patterns", ()):
        if any(map(pattern.search, leaves)):
            continue
        shown = ", ".join(list(leaves)[:5]) + (", ..." if len(leaves) > 5 else "")
        warnings.warn(
            f"`{argument}` of `by_path` has {pattern.pattern!r}, which matches none of "
            f"the parameters {shown}",
            UnmatchedPatternWarning,
            stacklevel=2,
        )


def with_embeddings(dimension_numbers: Any) -> Any:
    """Dimension numbers for which embeddings and heads are matrices, too.

    Args:
        dimension_numbers: As in `on_matrices`.

    Returns:
        For None, a rule for which every leaf with two axes is a matrix; for a rule, the
        same rule with embeddings and heads as matrices; a tree or a function, which
        covers every leaf already, as it is.
    """
    if dimension_numbers is None:
        return by_path(include=".")
    if isinstance(dimension_numbers, PathRule) and dimension_numbers.full:
        return dataclasses.replace(
            dimension_numbers, decide=dimension_numbers.full, full=None
        )
    return dimension_numbers


def _compile(name: str, pattern: str | None) -> re.Pattern | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"`{name}` must be a regular expression, got {pattern!r}: {error}."
        ) from None


@dataclasses.dataclass(frozen=True)
class Resolved:
    """The decision for one leaf: its view (None if it is not a matrix), the reason."""

    view: MatrixView | None
    reason: str

    def on_side(self, residual: Side) -> "Resolved":
        """The same with another residual side, if it is a matrix."""
        if self.view is None:
            return self
        view = dataclasses.replace(self.view, residual=residual)
        return dataclasses.replace(self, view=view)


def resolve(
    dimension_numbers: Any, params: Any, leaves: Mapping[str, Any] | None = None
) -> dict[str, Resolved]:
    """Applies dimension numbers in any accepted form to the leaves of a tree.

    Args:
        dimension_numbers: None (the default rule), a `PathRule`, a tree or prefix tree
            of dimension numbers with None for other leaves, or a callable from the
            parameters to such a tree.
        params: The parameter tree; absent nodes are skipped.
        leaves: Those of its leaves to decide on, by path; None for all.

    Returns:
        The decision for every leaf, by path.

    Raises:
        ValueError: If a leaf is not covered or dimension numbers do not fit a leaf.
    """
    if leaves is None:
        leaves = named_leaves(params)
        if len(leaves) != len(jax.tree.leaves(params)):
            raise ValueError(
                "`params` must not hold two leaves of the same path; rename one of the "
                "keys that contain '/'."
            )
    if isinstance(dimension_numbers, Oriented):
        found = resolve(dimension_numbers.numbers, params, leaves)
        return {p: r.on_side(dimension_numbers.side(p)) for p, r in found.items()}
    decide = _decider(dimension_numbers, params)
    return {path: _resolve_leaf(path, leaf, decide) for path, leaf in leaves.items()}


def _resolve_leaf(path: str, leaf: Any, decide) -> Resolved:
    if not hasattr(leaf, "shape"):
        raise ValueError(
            f"`params` must hold arrays, got {leaf!r} at {path!r}; use jnp.array, or "
            "for an Equinox model eqx.filter(model, eqx.is_inexact_array)."
        )
    numbers, reason = decide(path, leaf)
    if numbers is None:
        return Resolved(None, reason)
    if 0 in leaf.shape:
        return Resolved(None, "empty")
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f"`dimension_numbers` of parameter {path!r} must be None: its dtype "
            f"{jnp.dtype(leaf.dtype).name} is not floating."
        )
    return Resolved(make_view(leaf.shape, numbers, path), reason)


def _decider(dimension_numbers: Any, params: Any) -> Callable[[str, Any], Decision]:
    if dimension_numbers is None:
        return default_rule
    if isinstance(dimension_numbers, PathRule):
        return dimension_numbers.decide
    if callable(dimension_numbers) and not is_dimension_numbers(dimension_numbers):
        dimension_numbers = dimension_numbers(params)
    is_leaf = lambda x: x is None or is_dimension_numbers(x)
    pairs = jax.tree_util.tree_flatten_with_path(dimension_numbers, is_leaf=is_leaf)[0]
    table = {path_name(keys): value for keys, value in pairs}
    wrong = {p: v for p, v in table.items() if not is_leaf(v)}
    if wrong:
        path, value = next(iter(wrong.items()))
        raise ValueError(
            "`dimension_numbers` must hold MatrixDimensionNumbers or None, got "
            f"{value!r} at {path!r}."
        )

    def decide(path: str, leaf: Any) -> Decision:
        del leaf
        parts = path.split("/")
        for k in range(len(parts), -1, -1):
            if (prefix := "/".join(parts[:k])) in table:
                value = table[prefix]
                return value, "given" if value is not None else "given as None"
        raise ValueError(
            "`dimension_numbers` must cover every parameter (a prefix tree will do), "
            f"but have no entry for {path!r}; add MatrixDimensionNumbers, or None."
        )

    return decide
