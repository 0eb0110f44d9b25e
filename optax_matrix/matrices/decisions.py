"""Which leaves of a tree are matrices: the one place that decides it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_matrix._arguments import is_function
from optax_matrix._mesh import context_mesh, visible_mesh
from optax_matrix._paths import named_leaves, prefixes
from optax_matrix.matrices.batch_names import refuse_inside
from optax_matrix.matrices.boxes import boxes_of, has_logical_names, names_of
from optax_matrix.matrices.leaves import leaves_in_tree
from optax_matrix.matrices.names import Accepted, Guess, default_rule
from optax_matrix.matrices.oriented import Oriented
from optax_matrix.matrices.rules import PathRule
from optax_matrix.matrices.vectors import is_vector
from optax_matrix.matrices.view import MatrixView, Side, is_dimension_numbers, make_view

Rule = Callable[[str, Any], tuple[Any, str]]


@dataclasses.dataclass(frozen=True)
class Decision:
    """What a leaf is.

    Attributes:
        view: Its view as matrices, or None.
        reason: Why it has this view, or none.
        is_vector: Whether it is a bias, scale or scalar, or a stack of them.
        box: The node of a framework that holds this leaf alone, or None.
    """

    view: MatrixView | None
    reason: str
    is_vector: bool = False
    box: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def is_guess(self) -> bool:
        """Whether names and shapes decided it, and nobody accepted that."""
        return isinstance(self.reason, Guess) and not isinstance(self.reason, Accepted)

    def on_side(self, residual: Side) -> "Decision":
        """The same with another residual side, if it is a matrix."""
        if self.view is None:
            return self
        view = dataclasses.replace(self.view, residual=residual)
        return dataclasses.replace(self, view=view)


Decisions = Mapping[str, Decision]  # By the leaf's path.


def views_of(decisions: Decisions) -> dict[str, MatrixView]:
    """The views of the leaves that are matrices."""
    return {path: d.view for path, d in decisions.items() if d.view is not None}


class Kinds(NamedTuple):
    """What `update` needs of the decisions on a tree; it holds no arrays.

    Attributes:
        views: The views of the leaves that are matrices, by path.
        vectors: The paths of the leaves that are vectors.
        answers: What else was found about this tree, by the function that finds it.
    """

    views: dict[str, MatrixView]
    vectors: frozenset[str]
    answers: dict[Any, Any]


def kinds_of(decisions: Decisions) -> Kinds:
    """The decisions on a tree in short."""
    vectors = frozenset(path for path, d in decisions.items() if d.is_vector)
    return Kinds(views_of(decisions), vectors, {})


def decide(
    params: Any, dimension_numbers: Any = None, leaves: Mapping[str, Any] | None = None
) -> dict[str, Decision]:
    """What each leaf of a tree is, by path; ``leaves`` limits it to some of them.

    Dimension numbers are None (the default rule), a `PathRule`, a tree or prefix tree
    of dimension numbers with None for other leaves, or a callable from the parameters
    to such a tree or to a rule. A leaf that they do not cover or fit raises a
    `ValueError`.
    """
    if leaves is None:
        leaves = named_leaves(params)
        if len(leaves) != len(jax.tree.leaves(params)):
            raise ValueError(
                "`params` must not hold two leaves of the same path; rename one of the "
                "keys that contain '/'."
            )
    if isinstance(dimension_numbers, Oriented):
        found = decide(params, dimension_numbers.numbers, leaves)
        return {p: d.on_side(dimension_numbers.side(p)) for p, d in found.items()}
    rule = _rule(dimension_numbers, params)
    told = leaves_in_tree(params, leaves)
    boxes = boxes_of(params)
    found = {
        path: dataclasses.replace(
            _decision(path, leaf, rule),
            is_vector=is_vector(path, leaf),
            box=boxes.get(path),
        )
        for path, leaf in told.items()
    }
    # Of what is guessed, names are another opinion, and doubts tell.
    given = views_of({path: d for path, d in found.items() if not d.is_guess})
    if boxes and given:
        logical = {p: box for p, box in boxes.items() if has_logical_names(box)}
        names = {path: names_of(box) for path, box in logical.items()}
        refuse_inside(names, given, visible_mesh(leaves) or context_mesh())
    return found


def _decision(path: str, leaf: Any, rule: Rule) -> Decision:
    if not hasattr(leaf, "shape"):
        raise ValueError(
            f"`params` must hold arrays, got {leaf!r} at {path!r}; use jnp.array, or "
            "for an Equinox model eqx.filter(model, eqx.is_inexact_array)."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ValueError(
            f"`params` must hold arrays of numbers, got a random key at {path!r}; pass "
            "parameters only, such as nnx.state(model, nnx.Param)."
        )
    numbers, reason = rule(path, leaf)
    if numbers is None:
        return Decision(None, reason)
    if 0 in leaf.shape:
        return Decision(None, "empty")
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f"`dimension_numbers` of parameter {path!r} must be None: its dtype "
            f"{jnp.dtype(leaf.dtype).name} is not floating."
        )
    return Decision(make_view(leaf.shape, numbers, path), reason)


def refuse_unmatched(dimension_numbers: Any, params: Any, paths: Iterable[str]) -> None:
    """Raises for numbers of a tree that belong to none of the leaves."""
    known = {"", *(prefix for path in paths for prefix in prefixes(path))}
    numbers = _called(dimension_numbers, params)
    for path, value in (_table(numbers) or {}).items():
        if value is not None and path not in known:
            raise ValueError(
                f"`dimension_numbers` have an entry for {path!r}, which is no "
                "parameter; correct its path, or remove it."
            )


def _called(dimension_numbers: Any, params: Any) -> Any:
    """Dimension numbers, or those that a function makes of the parameters."""
    is_rule = isinstance(dimension_numbers, (PathRule, Oriented, type(None)))
    if is_rule or not is_function(dimension_numbers):
        return dimension_numbers
    made = dimension_numbers(params)
    return {"": None} if made is None else made


def _table(dimension_numbers: Any) -> dict[str, Any] | None:
    """The entries of a tree of dimension numbers by path; None for rules."""
    if dimension_numbers is None or isinstance(dimension_numbers, (PathRule, Oriented)):
        return None
    is_leaf = lambda x: x is None or is_dimension_numbers(x)
    table = named_leaves(dimension_numbers, is_leaf)
    wrong = {p: v for p, v in table.items() if not is_leaf(v)}
    if wrong:
        path, value = next(iter(wrong.items()))
        at = f" at {path!r}" if path else ""
        raise ValueError(
            "`dimension_numbers` must be a rule, such as matrices.by_path(exclude='a "
            "name'), or a tree of MatrixDimensionNumbers or None for each parameter, "
            f"got {value!r}{at}."
        )
    return table


def _rule(dimension_numbers: Any, params: Any) -> Rule:
    dimension_numbers = _called(dimension_numbers, params)
    if isinstance(dimension_numbers, PathRule):
        return dimension_numbers.of_leaf
    table = _table(dimension_numbers)
    if table is None:
        return default_rule

    def look_up(path: str, leaf: Any) -> tuple[Any, str]:
        del leaf
        for prefix in (path, *prefixes(path), ""):
            if prefix in table:
                value = table[prefix]
                return value, "given" if value is not None else "given as None"
        raise ValueError(
            "`dimension_numbers` must cover every parameter (a prefix tree will do), "
            f"but have no entry for {path!r}; add MatrixDimensionNumbers, or None."
        )

    return look_up
