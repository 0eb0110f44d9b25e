"""Transformations of leaves that are no matrices, by their place in the model."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from optax_matrix._paths import map_named, named_leaves
from optax_matrix._surroundings import here
from optax_matrix.matrices.ends import End, ends_of
from optax_matrix.stacks.zeros import zero_leaves

Ends = Callable[[Any], dict[str, End]]
"""A function from a whole tree to the places of its leaves."""


def _found(ends: Ends, whole: Any, part: Any = None) -> dict[str, End]:
    """The ends of a tree; inside `on_matrices` they are found once for each form.

    Without params, and where `init` has not run, only the leaves of ``part`` are
    known: what they tell is not kept, because the whole tree may tell more.
    """
    kinds = here().kinds
    if kinds is not None and ends in kinds.answers:
        return kinds.answers[ends]
    if whole is None:
        return ends(part)
    found = ends(whole)
    if kinds is not None:
        kinds.answers[ends] = found
    return found


def by_end(
    of_place: Mapping[str, optax.GradientTransformation],
    ends: Ends,
    whole: Any,
) -> optax.GradientTransformation:
    """Runs stateless transformations of matrices on leaves, by their place."""

    def init(params: Any) -> optax.EmptyState:
        if whole is not None:
            _found(ends, whole)  # `update` finds it known.
        return optax.init_empty_state(params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        found = _found(ends, whole, updates)

        def of(path: str, x: jax.Array) -> jax.Array:
            view, tx = found[path].view, of_place[found[path].place]
            if not x.size:
                return x
            run: Any = lambda x: tx.update(x, tx.init(x))[0]
            if view is None:
                return run(x[..., None, :])[..., 0, :] if x.ndim else run(x)
            return view.from_matrices([run(m) for m in view.to_matrices(x[None])])[0]

        return map_named(of, updates), state

    return optax.GradientTransformation(init, update)


def heads_apart(
    heads: optax.GradientTransformation, rest: optax.GradientTransformation, whole: Any
) -> optax.GradientTransformation:
    """One transformation for the heads among some leaves, and one for the others.

    ``whole`` is the tree with the matrices, or None where it is not known.
    """

    def only(tree: Any, ends: Any) -> Any:
        none = optax.MaskedNode()  # A tree of one leaf must not become None.
        keep = lambda path, x: x if ends[path].place == "last" else none
        return map_named(keep, tree)

    def init(params: Any) -> Any:
        if whole is not None:
            views = {
                p: e.view
                for p, e in _found(ends_of, whole).items()
                if e.place == "last"
            }
            if zero := sorted(zero_leaves(named_leaves(params), views)):
                warnings.warn(
                    "A head that starts at zero is never moved by steps that keep its "
                    f"norm: {zero[0]}. Initialize it, or give `other` an optimizer.",
                    stacklevel=2,
                )
        return heads.init(params), rest.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        ends = _found(ends_of, whole, params)
        others, of_rest = rest.update(updates, state[1], params)
        own = only(updates, ends), state[0], only(params, ends)
        own, of_heads = heads.update(*own)
        is_none = lambda own: isinstance(own, optax.MaskedNode)
        pick = lambda other, own: other if is_none(own) else own
        return jax.tree.map(pick, others, own), (of_heads, of_rest)

    return optax.GradientTransformation(init, update)
