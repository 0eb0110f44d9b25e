"""Measures applied to every matrix of a parameter tree."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from optax_matrix._arguments import check_callable
from optax_matrix._mesh import visible_mesh, with_auto_axes
from optax_matrix._paths import named_leaves, natural_order
from optax_matrix.stacks.layout import Layout, make_layout

Measure = Callable[..., Any]
_ALONE = "measure"


def of_matrices(
    measure: Measure | Mapping[str, Measure],
    tree: Any,
    *others: Any,
    dimension_numbers: Any = None,
) -> dict[str, Any]:
    """Applies measures to every matrix of a tree, by parameter path.

    Matrices are ``out x in``, so a row is an output neuron. Equal matrices of different
    leaves are measured together. It works on weights, gradients and updates alike,
    inside `jax.jit`, and on sharded leaves: the partitioner gathers what a measure
    needs, also under Explicit axes, where results are replicated.

    Args:
        measure: A function of matrices ``(..., m, n)`` such as `stable_rank`, with one
            result (an array or a tree of arrays) per matrix; or a dict of functions.
        tree: Parameters, or a tree like them.
        *others: Trees like the first one. The measure gets a stack of each, as
            `alignment_score` needs.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.

    Returns:
        For each matrix leaf, by path, the results ``(matrices of the leaf, ...)``. With
        a dict of measures each path has a dict of results. Where ``output_sections`` or
        ``reduction_sections`` split a leaf into pieces of different sizes, these follow
        as ``path#1``, ``path#2``, ..., as in `to_portable`.

    Raises:
        ValueError: If a measure is not a function; if another tree lacks a matrix leaf,
            or has one of another shape.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> params = {"up": {"kernel": jnp.ones((4, 8)), "bias": jnp.ones(8)}}
        >>> ranks = of_matrices(om.diagnostics.stable_rank, params)
        >>> print(ranks["up/kernel"].round(3))
        [1.]

        Two measures, and two trees:

        >>> total = lambda x: x.sum((1, 2))
        >>> several = {"rank": om.diagnostics.stable_rank, "sum": total}
        >>> list(of_matrices(several, params)["up/kernel"])
        ['rank', 'sum']

        >>> half = {"up": {"kernel": jnp.ones((4, 8)).at[:, :4].set(0.0)}}
        >>> score = om.diagnostics.alignment_score
        >>> of_matrices(score, half, params)["up/kernel"].round(3).tolist()
        [0.707...]
    """
    measures = measure if isinstance(measure, Mapping) else {_ALONE: measure}
    for each in measures.values():
        check_callable("measure", each)
    layout = make_layout(tree, dimension_numbers)
    trees = [named_leaves(each) for each in (tree, *others)]
    for leaves in trees[1:]:
        _check_leaves(leaves, layout.views)
    matrices = [{path: leaves[path] for path in layout.views} for leaves in trees]
    run = functools.partial(_measured, layout, measures)
    mesh = visible_mesh(matrices[0])
    if mesh is not None and AxisType.Explicit in mesh.axis_types:
        run = with_auto_axes(run, NamedSharding(mesh, PartitionSpec()))
    found: dict[str, Any] = run(*matrices)
    ordered = {path: found[path] for path in sorted(found, key=natural_order)}
    if isinstance(measure, Mapping):
        return ordered
    return {path: results[_ALONE] for path, results in ordered.items()}


def _measured(
    layout: Layout, measures: Mapping[str, Measure], *matrices: Any
) -> dict[str, dict[str, Any]]:
    """The results of each leaf, or piece of a leaf, by path and name of the measure."""
    stacks = [layout.stack(leaves) for leaves in matrices]
    found: dict[str, Any] = {}
    for name, group in layout.groups.items():
        arguments = [stack[name] for stack in stacks]
        results = {key: of(*arguments) for key, of in measures.items()}
        _check_results(results, group.count)
        for m in group.members:
            rows = slice(m.start, m.start + m.count)
            path = m.path + (f"#{m.piece}" if m.piece else "")
            part = lambda x, rows=rows: x[rows]
            found[path] = {key: jax.tree.map(part, x) for key, x in results.items()}
    return found


def _check_leaves(leaves: Mapping[str, Any], views: Mapping[str, Any]) -> None:
    for path, view in views.items():
        shape = getattr(leaves.get(path), "shape", None)
        if shape != view.shape:
            raise ValueError(
                f"`others` must be trees like `tree`, which has {path!r} of shape "
                f"{view.shape}, got {'no such leaf' if shape is None else shape}; pass "
                "trees of the same parameters."
            )


def _check_results(results: Any, count: int) -> None:
    for x in jax.tree.leaves(results):
        if getattr(x, "shape", ())[:1] != (count,):
            raise ValueError(
                "`measure` must return one result per matrix, with the axis of the "
                f"matrices in front, ({count}, ...), got "
                f"{getattr(x, 'shape', type(x).__name__)}; reduce the last two axes "
                "only."
            )
