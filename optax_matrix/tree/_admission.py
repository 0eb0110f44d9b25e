"""What `update` accepts: gradients, parameters and a state that fit one another."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from optax_matrix._mesh import check_reduced
from optax_matrix._paths import flatten_named
from optax_matrix.matrices.decisions import Kinds
from optax_matrix.stacks.layout import Layout
from optax_matrix.tree.state import (
    OnMatricesState,
    check_method,
    check_structure,
    is_ours,
    is_state,
)


class Terms(NamedTuple):
    """What decides whether the arguments of `update` fit.

    Attributes:
        name: Name of the method.
        init: Its `init`.
        needs_params: Whether it uses the parameters.
        fields: The optional fields of its state; None for those that it lacks.
        seen: ``seen(tree, leaves)``, the decisions on some leaves of a tree, and the
            layout of their stacks.
    """

    name: str | None
    init: Callable[[Any], Any]
    needs_params: bool
    fields: Mapping[str, Any]
    seen: Callable[[Any, Mapping[str, Any]], tuple[Kinds, Layout]]


class Named(NamedTuple):
    """A tree, its leaves by path, and the function from such leaves to a tree."""

    tree: Any
    leaves: dict[str, Any]
    rebuild: Callable[[Mapping[str, Any]], Any]

    @classmethod
    def of(cls, tree: Any) -> "Named":
        """A tree with its names."""
        return cls(tree, *flatten_named(tree))


class Admitted(NamedTuple):
    """The arguments of `update`, which fit one another.

    Attributes:
        updates: The gradients.
        params: The parameters that have gradients; without parameters the gradients.
        has_params: Whether there are parameters.
        kinds: The decisions on the leaves.
        layout: The layout of their stacks.
    """

    updates: Named
    params: Named
    has_params: bool
    kinds: Kinds
    layout: Layout


@contextlib.contextmanager
def admitted(
    terms: Terms, updates: Any, state: Any, params: Any, extra: Mapping[str, Any]
) -> Iterator[Admitted]:
    """Checks what `update` gets, and explains what the step inside raises."""
    whole = updates if params is None else _with_updates_only(params, updates)
    if not is_state(state) or any(
        (getattr(state, name) is None) != (field is None)
        for name, field in terms.fields.items()
    ):
        check_structure(terms.init, state, whole)
    check_method(state, terms.name)
    if terms.name is None and extra.get("gradient") is not None:
        raise ValueError(
            "`gradient` must not be given to `on_matrices`, whose chain sees stacks of "
            "matrices and not the tree; write on_matrices(with_gradient(chain))."
        )
    if terms.needs_params and params is None:
        raise ValueError(
            "`params` must be passed to `update`: this transformation uses the "
            "parameters; call tx.update(updates, state, params)."
        )
    try:
        yield _admitted(terms, updates, state, params, whole)
    except Exception as error:
        # Only now, as it traces `init`; a state of the right form is not the cause.
        _explain_missing_params(error, params)
        refuse_missing_updates(terms.init, state, updates, params)
        if not is_ours(error):
            check_structure(terms.init, state, whole)
        raise


def _admitted(
    terms: Terms, updates: Any, state: Any, params: Any, whole: Any
) -> Admitted:
    # Shapes and dtypes are those of ``whole``, the parameters that have updates.
    grads, own = Named.of(updates), Named.of(whole)
    _check_shapes(grads.leaves, own.leaves)
    like = {path: own.leaves[path] for path in grads.leaves}
    kinds, layout = terms.seen(updates if params is None else params, like)
    _check_manifest(layout, state)
    check_reduced({p: x for p, x in grads.leaves.items() if p not in kinds.views})
    return Admitted(grads, own, params is not None, kinds, layout)


def _with_updates_only(params: Any, updates: Any) -> Any:
    """Parameters without those whose update is None.

    Equinox's own loops pass the whole model, with its functions and ints.
    """
    is_none = lambda x: x is None
    leaves, structure = jax.tree.flatten(updates, is_leaf=is_none)
    if not any(map(is_none, leaves)):
        return params
    try:
        parts = structure.flatten_up_to(params)
    except (TypeError, ValueError):
        return params  # Of another structure; what follows says so.
    pairs = zip(leaves, parts, strict=True)
    return structure.unflatten([None if x is None else part for x, part in pairs])


def _check_shapes(updates: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Raises unless every gradient, by path, has the shape of its parameter."""
    for path, leaf in updates.items():
        if path not in params:
            raise ValueError(
                "`updates` must be gradients of `params`, got one for "
                f"{path!r}, which `params` lack; pass trees of one structure."
            )
        got, wanted = np.shape(leaf), np.shape(params[path])
        if got != wanted:
            raise ValueError(
                f"`updates` must have the shapes of the parameters, got {got} for "
                f"{path!r} of shape {wanted}; pass gradients as jax.grad returns them, "
                "neither transposed nor reshaped."
            )


def _check_manifest(layout: Layout, state: OnMatricesState) -> None:
    """Raises unless a state holds the stacks of a layout."""
    held, wanted = set(state.manifest), set(layout.groups)
    if held != wanted:
        raise ValueError(
            "`state` must belong to these parameters: it holds stacks "
            f"{sorted(held - wanted)}, but they need {sorted(wanted - held)} "
            "(name: shape, residual side if the method reads it, checksum of the "
            "parameters' paths, shapes and axes). "
            "If a layer was renamed, added, frozen or cast, or the sharding, "
            "`max_batch` or `dimension_numbers` changed, carry the state over with "
            "optax_matrix.to_portable and from_portable; if the gradients have another "
            "dtype or shape than the parameters, pass `params` to `update`."
        )


def _explain_missing_params(error: Exception, params: Any) -> None:
    """Raises in our words if an error of optax's is about missing parameters."""
    if "requires the current value of parameters" in str(error):
        if params is not None:
            raise ValueError(
                "`needs_params` must be True, because `build` uses the parameters; "
                "pass needs_params=True to `on_matrices`."
            ) from None
        raise ValueError(
            "`params` must be passed to `update`, since weight decay or `other` uses "
            "the parameters; call tx.update(updates, state, params), or leave out the "
            "decay with weight_decay=0.0."
        ) from None


def refuse_missing_updates(
    init: Callable, state: Any, updates: Any, params: Any
) -> None:
    """Raises if a gradient is None but `init` saw its parameter."""
    if params is None:
        return
    held, known = flatten_named(updates)[0], flatten_named(params)[0]
    missing = sorted(known.keys() - held.keys())
    if not missing:
        return
    try:
        wanted = jax.eval_shape(init, params)
    except Exception:  # Then the missing gradients are not the cause.
        return
    if jax.tree.structure(state) == jax.tree.structure(wanted):
        raise ValueError(
            "`updates` must have a gradient for every parameter that `init` saw, got "
            f"None for {missing[0]!r}; pass zeros, or give `init` and `update` only "
            "the parameters that are trained, for example with optax.partition."
        )
