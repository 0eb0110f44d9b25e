"""Residual sides of matrices, for transformations of stacks that read them.

A transformation reads the side of a stack from `Group.residual`. If it does so while it
makes its state, matrices that differ only in that side are in two stacks. For all other
transformations they are in one, which needs fewer loops, and less padding with owners.
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
    """The views by which matrices are stacked.

    They have residual sides only if `build`, or ``init`` of what it returns, reads the
    side of a stack. This is found out once for each tree.
    """
    views = kinds.views
    if all(view.residual is None for view in views.values()):
        return views
    if views_for not in kinds.answers:
        reads = _reads_sides(build, leaves, views, pairs)
        kinds.answers[views_for] = views if reads else without_sides(views)
    return kinds.answers[views_for]


def without_sides(views: Mapping[str, MatrixView]) -> dict[str, MatrixView]:
    """Views without residual sides."""
    without = lambda view: dataclasses.replace(view, residual=None)
    return {path: without(view) for path, view in views.items()}


def refusing_late_questions(layout: Layout, views: Mapping[str, MatrixView]) -> Layout:
    """A layout for a step, which refuses to give sides if stacks are made without them.

    Args:
        layout: The stacks.
        views: The views of all leaves, with their sides.
    """
    with_sides = any(view.residual for view in layout.views.values())
    if with_sides or not any(view.residual for view in views.values()):
        return layout
    return _with_groups(layout, _WithoutSide)


class _WithoutSide(Group):
    """A group that may hold matrices of both residual sides."""

    @property
    def residual(self) -> Any:
        raise ValueError(
            "`residual` of a stack must be read in build(layout) or in `init`, but it "
            "was first read in `update`, where one stack may hold matrices of both "
            "sides; read it in `build`."
        )


class _SideIsRead(Exception):
    """A transformation has read the residual side of a stack."""


class _Watched(Group):
    """A group that raises when its residual side is read."""

    @property
    def residual(self) -> Any:
        raise _SideIsRead


def _reads_sides(
    build: Build,
    leaves: Mapping[str, Any],
    views: Mapping[str, MatrixView],
    pairs: Pairs,
) -> bool:
    """Whether a transformation reads residual sides while it makes its state.

    Its ``init`` is traced with groups that raise. If it fails for another reason, such
    as a missing mesh, it is not known whether it reads sides, and the answer is yes.
    """
    like = {
        path: jax.ShapeDtypeStruct(view.shape, _dtype(leaves[path]))
        for path, view in views.items()
    }
    layout = _with_groups(group_matrices(like, views, pairs=pairs), _Watched)
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
