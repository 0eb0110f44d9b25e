"""The residual sides of matrices, for transformations of stacks that ask for them.

Two stacks of one shape that differ only in the side of the residual stream are one
stack for all other transformations: fewer loops, and with owners less padding.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import dtypes

from optax_matrix._surroundings import within
from optax_matrix.matrices.decisions import Kinds
from optax_matrix.matrices.pairs import Pairs
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.layout import Group, Layout, group_matrices
from optax_matrix.tree._build import Build


def views_for(
    build: Build, leaves: Mapping[str, Any], kinds: Kinds, pairs: Pairs
) -> dict[str, MatrixView]:
    """The views by which a transformation's matrices are stacked.

    They have residual sides only if `build` or one of its blocks asks for the side of
    a stack while it makes its state. It is asked once for each tree.
    """
    views = kinds.views
    if all(view.residual is None for view in views.values()):
        return views
    if views_for not in kinds.answers:
        asked = _asks(build, leaves, views, pairs)
        kinds.answers[views_for] = views if asked else without_sides(views)
    return kinds.answers[views_for]


def without_sides(views: Mapping[str, MatrixView]) -> dict[str, MatrixView]:
    """Views without residual sides."""
    without = lambda view: dataclasses.replace(view, residual=None)
    return {path: without(view) for path, view in views.items()}


def refusing_late_questions(layout: Layout, views: Mapping[str, MatrixView]) -> Layout:
    """A layout for a step: a residual side that was not asked for before is refused.

    Args:
        layout: The stacks.
        views: The views of all leaves, with their sides.
    """
    told = any(view.residual for view in layout.views.values())
    if told or not any(view.residual for view in views.values()):
        return layout
    return _with_groups(layout, _Late)


class _Late(Group):
    """A group of a layout that was not asked for its residual side."""

    @property
    def residual(self) -> Any:
        raise ValueError(
            "`residual` of a stack must be read in build(layout) or while the state "
            "is made, got a first question in `update`, when one stack holds matrices "
            "of both sides; read it in `build`."
        )


class _Asked(Exception):
    """A transformation has asked for the residual side of a stack."""


class _Silent(Group):
    """A group that does not tell its residual side."""

    @property
    def residual(self) -> Any:
        raise _Asked


def _asks(
    build: Build,
    leaves: Mapping[str, Any],
    views: Mapping[str, MatrixView],
    pairs: Pairs,
) -> bool:
    """Whether a transformation asks for residual sides while it makes its state.

    One that fails without a mesh or without values may ask, as far as is known.
    """
    like = {
        path: jax.ShapeDtypeStruct(view.shape, _dtype(leaves[path]))
        for path, view in views.items()
    }
    layout = _with_groups(group_matrices(like, views, pairs=pairs), _Silent)
    stacks = {
        name: jax.ShapeDtypeStruct(group.shape, group.dtype)
        for name, group in layout.groups.items()
    }
    with warnings.catch_warnings(), within(layout=layout, sides=None, measures={}):
        warnings.simplefilter("ignore")  # `init` warns of the same.
        try:
            jax.eval_shape(lambda stacks: build(layout).init(stacks), stacks)
        except Exception:
            return True
    return False


def _with_groups(layout: Layout, kind: type[Group]) -> Layout:
    """A layout whose groups are of another kind, with the same values."""
    groups = {name: object.__new__(kind) for name in layout.groups}
    for name, group in groups.items():
        vars(group).update(vars(layout.groups[name]))
    return dataclasses.replace(layout, groups=groups)


def _dtype(leaf: Any) -> Any:
    return dtypes.canonicalize_dtype(jnp.result_type(leaf))
