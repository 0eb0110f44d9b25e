"""Rules for which leaves are matrices, and their exceptions by path."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax.numpy as jnp

from optax_matrix._arguments import check_pattern
from optax_matrix._paths import map_named, named_leaves, shown
from optax_matrix.matrices.leaves import leaves_in_tree
from optax_matrix.matrices.names import (
    Accepted,
    Answer,
    default_full_rule,
    default_rule,
    numbers_of_kernel,
)
from optax_matrix.matrices.tables import (
    Entry,
    fits,
    place_in,
    read_table,
    refuse_leaf,
)
from optax_matrix.matrices.view import MatrixDimensionNumbers, is_dimension_numbers

Mode = Literal["inner", "head", "full"]  # Which leaves are matrices, if any.


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
        with_head: The same rule with the output head as a matrix; None if only its name
            tells which leaf is the head.
    """

    of_leaf: Callable[[str, Any], Answer]
    full: Callable[[str, Any], Answer] | None = None
    patterns: tuple[tuple[str, re.Pattern], ...] = ()
    paths: tuple[str, ...] = ()
    with_head: Callable[[str, Any], Answer] | None = None

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

    def among(self, mode: Mode) -> Callable[[str, Any], Answer]:
        """The rule with these leaves as matrices, too, as far as it tells them."""
        of_mode = {"full": self.full, "head": self.with_head}.get(mode)
        return of_mode or self.of_leaf


class _ByNames(PathRule):
    """Accepts what the names and shapes of parameters say, without a warning.

    It reads as the default rule does. Without it, `init` counts in a
    `ReadFromNamesWarning` the parameters of which nothing but the name tells what they
    are. `by_use` reads these from the model, which is safer; look at `describe` before
    you accept them.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> params = {"w_in": jnp.ones((4, 8)), "w_out": jnp.ones((8, 3))}
        >>> rule = om.matrices.by_names
        >>> print(om.describe(params, rule))
        leaf   shape   view       group          optimizer  why
        w_in   (4, 8)  1x (8, 4)  ...            matrix     kernel (in, out)
        w_out  (8, 3)  1x (3, 8)  ...            matrix     kernel (in, out)
        100% matrix, 0% embeddings and heads, 0% other
        >>> state = om.muon(0.02, dimension_numbers=rule).init(params)

        With exceptions:

        >>> rule = om.matrices.by_path(exclude="w_out", otherwise=om.matrices.by_names)
    """


@dataclasses.dataclass(frozen=True)
class _Accepting:
    """A rule whose guesses are accepted."""

    of_leaf: Callable[[str, Any], Answer]

    def __call__(self, path: str, leaf: Any) -> Answer:
        numbers, reason = self.of_leaf(path, leaf)
        return numbers, Accepted(reason)


by_names = _ByNames(_Accepting(default_rule), _Accepting(default_full_rule))
"""Reads names and shapes as the default rule does; `init` does not warn of it.

It is a `PathRule`, for ``dimension_numbers``. Look at `describe` before you accept what
names say.

>>> import jax.numpy as jnp
>>> import optax_matrix as om
>>> params = {"w_in": jnp.ones((4, 8)), "w_out": jnp.ones((8, 3))}
>>> tx = om.muon(0.02, dimension_numbers=om.matrices.by_names)
>>> state = tx.init(params)
"""


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
        table: What ``table()`` of the rule of `by_use` returned: dimension numbers (or
            None) by whole path, as dicts of their fields, with the shape. It comes
            after `numbers`, and has all matrices unless there is `otherwise`.
        otherwise: Rule for all other leaves: a `PathRule` such as `infer` returns; None
            for the default rule.

    Returns:
        A rule for the ``dimension_numbers`` argument of every recipe. An expression
        that matches no parameter may be a typo: `init` gives an
        `UnmatchedPatternWarning`. Where some models lack the layers that are meant,
        ``warnings.simplefilter("ignore", UnmatchedPatternWarning)`` silences it.

    Raises:
        ValueError: If an expression does not compile, or an argument has another type;
            at `init`, if the table names a parameter that is not there, has it in
            another shape, or lacks one.

    Examples:
        The matrix optimizer for embedding and head, too, but not for the last layer:

        >>> rule = by_path(include="embed|lm_head", exclude="layers/11/")
    """
    include_, exclude_ = _compile("include", include), _compile("exclude", exclude)
    given = _given({} if numbers is None else numbers)
    known = read_table({} if table is None else table)
    is_whole = table is not None and otherwise is None
    if otherwise is None:
        otherwise = PathRule(default_rule, default_full_rule)
    if not isinstance(otherwise, PathRule):
        raise ValueError(
            "`otherwise` must be None or a rule, such as `matrices.infer` returns, got "
            f"{type(otherwise).__name__}; `numbers` takes a dict."
        )

    of_leaf = _ByPath(include_, exclude_, given, known, otherwise, is_whole)
    of_mode = lambda mode: dataclasses.replace(of_leaf, mode=mode)
    named = [("include", include_), ("exclude", exclude_)]
    named += [("numbers", pattern) for pattern, _ in given]
    return PathRule(
        of_leaf,
        of_mode("full"),
        (*((name, p) for name, p in named if p), *otherwise.patterns),
        (*(path for path, _ in known), *otherwise.paths),
        otherwise.with_head and of_mode("head"),
    )


_OF_THIS_MODEL = "make a table of this model, or give a rule for others as `otherwise`"


@dataclasses.dataclass(frozen=True)
class _ByPath:
    """The rule ``of_leaf(path, leaf)`` of `by_path`."""

    include: re.Pattern | None
    exclude: re.Pattern | None
    numbers: tuple[tuple[re.Pattern | None, Any], ...]
    table: tuple[tuple[str, Entry], ...]
    otherwise: PathRule
    is_whole: bool = False  # The table has all matrices.
    mode: Mode = "inner"

    def __call__(self, path: str, leaf: Any) -> Answer:
        if self.exclude and self.exclude.search(path):
            return None, f"excluded by {self.exclude.pattern!r}"
        for pattern, value in self.numbers:
            applies = value is None or len(leaf.shape) >= 2
            if pattern and applies and pattern.search(path):
                return value, f"given for {pattern.pattern!r}"
        if place := place_in(self._known, path):
            entry = self._known[place]
            if not fits(leaf.shape, entry.shape):
                refuse_leaf("`table`", path, leaf, entry.shape, _OF_THIS_MODEL)
            return entry.numbers, "given by the table"
        if self.include and self.include.search(path) and len(leaf.shape) >= 2:
            value = numbers_of_kernel(path, leaf)[0]
            return value, f"included by {self.include.pattern!r}"
        if self.is_whole:
            refuse_leaf("`table`", path, leaf, None, _OF_THIS_MODEL)
        return self.otherwise.among(self.mode)(path, leaf)

    @functools.cached_property
    def _known(self) -> dict[str, Entry]:
        return dict(self.table)


class UnmatchedPatternWarning(UserWarning):
    """An expression of `by_path` matches no parameter."""


def warn_of_unmatched(dimension_numbers: Any, leaves: Mapping[str, Any]) -> None:
    """Warns of expressions that match none of the leaves of a whole tree.

    Raises:
        ValueError: If a table names a leaf that is not there.
    """
    refuse_missing(getattr(dimension_numbers, "paths", ()), leaves)
    for argument, pattern in getattr(dimension_numbers, "patterns", ()):
        if any(map(pattern.search, leaves)):
            continue
        warnings.warn(
            f"`{argument}` has {pattern.pattern!r}, which matches none of the "
            f"parameters {shown(leaves)}",
            UnmatchedPatternWarning,
            stacklevel=2,
        )


def refuse_missing(paths: Iterable[str], leaves: Mapping[str, Any]) -> None:
    """Raises if a table names a leaf that is not there."""
    missing = [path for path in paths if place_in(leaves, path) is None]
    if missing:
        raise ValueError(
            f"`table` must have paths of the parameters only, got {shown(missing)}; it "
            "is of another model, or its parameters were renamed."
        )


def _given(numbers: Any) -> tuple[tuple[re.Pattern | None, Any], ...]:
    """Dimension numbers and their expressions."""
    values = numbers.values() if isinstance(numbers, Mapping) else [numbers]
    known = [value is None or is_dimension_numbers(value) for value in values]
    if not isinstance(numbers, Mapping) or not all(known):
        raise ValueError(
            "`numbers` must be a dict of regular expressions, each with "
            f"MatrixDimensionNumbers or None, got {numbers!r}."
        )
    return tuple((_compile("numbers", k), _hashable(v)) for k, v in numbers.items())


def _hashable(value: Any) -> Any:
    """Dimension numbers of another library with tuples in place of lists."""
    axes = [getattr(value, name, None) for name in ("reduction_axis", "output_axis")]
    if not any(isinstance(x, list) for x in axes):
        return value
    return MatrixDimensionNumbers(value.reduction_axis, value.output_axis)


def _compile(name: str, pattern: str | None) -> re.Pattern | None:
    if pattern is None:
        return None
    check_pattern(name, pattern)
    return re.compile(pattern)
