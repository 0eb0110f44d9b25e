"""The heads of attention as matrices of their own."""

import dataclasses
import math
import re
from functools import partial
from typing import Any

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix.matrices._words import own_names
from optax_matrix.matrices.names import Guess
from optax_matrix.matrices.rules import PathRule, by_path
from optax_matrix.matrices.view import (
    MatrixDimensionNumbers,
    is_dimension_numbers,
    make_view,
)

# Queries, keys and values, and the up-projection of latent ones (``kv_b``); not the
# down-projection (``kv_a``), nor the projection of the output.
_PROJECTIONS = re.compile(
    r"(^|[/_])w?(q|k|v|kv|qkv|query|key|value|query_key_value)(_b)?"
    r"(_?(proj(ection)?|einsum|kernel|dense|linear|up|w))?(/[^/]*)?$",
    re.IGNORECASE,
)


@checked
def split_heads(otherwise: Any = None, *, head_dim: PositiveInt | None = None) -> Any:
    r"""Treats each head of the queries, keys and values as a matrix of its own.

    A kernel ``(in, heads, head_dim)`` becomes ``heads`` matrices of ``head_dim`` rows,
    so that Muon is per head and the size of an update is that of a block,
    :math:`\sqrt{\max(1, d/n)}`. These are the projections to queries, keys and values,
    also fused ones, and the up-projections of latent attention (``q_b``, ``kv_b``), by
    their names. A rule of `by_use` tells them by their use, and the number of heads,
    too, so that flat kernels need no ``head_dim``. The projection of the output stays
    whole. ``heads="split"`` of a recipe is this rule. If ``otherwise`` gives sizes in
    ``output_sections`` that ``head_dim`` does not divide, they stay: so the key and the
    value of each head of ``kv_b`` can be two matrices.

    Args:
        otherwise: The rule that it changes: a `PathRule`, or None for the default rule.
        head_dim: Output size of a head, for kernels ``(in, heads * head_dim)``, whose
            shape does not show it.

    Returns:
        A rule for ``dimension_numbers``.

    Raises:
        ValueError: If an argument is out of range; at `init`, if the shape of a kernel
            does not show its heads and ``head_dim`` is None or does not divide it.

    Examples:
        >>> import jax.numpy as jnp, optax_matrix as om
        >>> params = {"query": {"kernel": jnp.ones((32, 4, 8))}}
        >>> rule = om.matrices.split_heads()
        >>> om.describe(params, dimension_numbers=rule).rows[0].view
        '4x (8, 32)'

    References:
        Kimi K3 (`arXiv:2607.24653 <https://arxiv.org/abs/2607.24653>`_) and GLM-5
        (`arXiv:2602.15763 <https://arxiv.org/abs/2602.15763>`_) train so.
    """
    if otherwise is not None and not isinstance(otherwise, PathRule):
        raise ValueError(
            "`otherwise` (`dimension_numbers` beside heads='split') must be a rule or "
            f"None, got {type(otherwise).__name__}; give the axis of the heads there "
            "as a batch axis."
        )
    rule = by_path(otherwise=otherwise)
    knows_use = rule.with_head is not None  # Made by `by_use`.

    split = lambda of_leaf: of_leaf and partial(_split, of_leaf, head_dim)
    patterns = rule.patterns
    if not knows_use:  # Names tell which kernels are projections.
        patterns = *patterns, ("heads", _PROJECTIONS)
    rules = split(rule.of_leaf), split(rule.full), patterns, rule.paths
    return PathRule(*rules, split(rule.with_head))


def _split(of_leaf: Any, head_dim: int | None, path: str, leaf: Any) -> Any:
    """The answer of a rule with heads apart; no closure, so that rules pickle."""
    numbers, why = of_leaf(path, leaf)
    if not is_dimension_numbers(numbers):
        return numbers, why
    heads = getattr(why, "heads", None)
    if heads and head_dim is None:
        return _by_number(path, leaf, numbers, heads), f"{why}, split by heads"
    if not heads and not _PROJECTIONS.search(own_names(path)):
        return numbers, why
    split = _by_heads(path, leaf, numbers, head_dim, isinstance(why, Guess))
    return split, f"{why}, split by heads"


def _by_number(path: str, leaf: Any, numbers: Any, heads: int) -> Any:
    """The numbers of each of so many heads, which the use of the leaf has told."""
    view = make_view(leaf.shape, numbers)
    out, sections = view.output_axes, view.output_sections
    sizes = [leaf.shape[axis] for axis in out]
    is_front = (i for i in range(1, len(out)) if math.prod(sizes[:i]) == heads)
    front = next(is_front, 0)
    rest = out[front:]
    if not front and heads in sizes and len(out) > 1:
        rest = tuple(axis for axis in out if axis != out[sizes.index(heads)])
    if rest != out:
        return dataclasses.replace(numbers, output_axis=rest, output_sections=1)
    if isinstance(sections, int) and view.rows % (sections * heads) == 0:
        return dataclasses.replace(numbers, output_sections=sections * heads)
    return _by_heads(path, leaf, numbers, None, guessed=False)


def _by_heads(
    path: str, leaf: Any, numbers: Any, head_dim: int | None, guessed: bool
) -> Any:
    """The numbers of each head; ``guessed`` if the present ones are the default."""
    view = make_view(leaf.shape, numbers)
    of = partial(
        MatrixDimensionNumbers,
        view.reduction_axes,
        reduction_sections=view.reduction_sections,
        residual=view.residual,
        layer_axis=view.layer_axes,
    )
    *heads, last = view.output_axes
    if heads:
        return of(last)
    given = view.output_sections
    sections = given if isinstance(given, tuple) else (view.rows,)
    if head_dim is not None:
        if not any(size % head_dim for size in sections):
            return of(last, output_sections=view.rows // head_dim)
        if len(sections) > 1 and not guessed:
            return numbers  # The given sections are parts of heads.
    counted = set(view.batch_axes) - set(view.layer_axes or ())
    if counted and head_dim is None and not guessed:
        return numbers  # The heads are a batch axis already, by the given numbers.
    raise ValueError(
        f"`head_dim` must divide the {view.rows} outputs of {path!r}, whose shape "
        f"{tuple(leaf.shape)} does not show the heads, got {head_dim}; pass "
        "dimension_numbers=om.matrices.split_heads(head_dim=...) in place of "
        "heads='split', or exclude the leaf by its `otherwise`."
    )
