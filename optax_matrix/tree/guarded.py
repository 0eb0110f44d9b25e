"""What `update` refuses before anything is computed."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax

from optax_matrix.matrices.doubts import warned_of_mistakes
from optax_matrix.matrices.paths import named_leaves, path_name
from optax_matrix.tree._trial import raised_in


def guarded(
    tx: optax.GradientTransformation, dimension_numbers: Any = None
) -> optax.GradientTransformationExtraArgs:
    """A transformation that refuses gradients of other shapes, and states of others.

    Without this, a gradient of another shape with as many entries would be taken for
    matrices of the right shape, and Adam would broadcast it. A state of another
    optimizer would end in an error about a missing attribute.

    Args:
        tx: A transformation of a whole tree.
        dimension_numbers: Those that it uses. `init` warns of expressions of `by_path`
            that match none of the parameters, and of doubtful decisions.

    Returns:
        The same transformation, with the same state. Its `update` raises a `ValueError`
        that names the leaf, or says how the state differs from that of `init`.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx, params = guarded(optax.adam(1e-3)), {"bias": jnp.ones(3)}
        >>> tx.update({"bias": jnp.ones(1)}, tx.init(params), params)
        Traceback (most recent call last):
        ValueError: `updates` must have ... got (1,) for 'bias' of shape (3,); ...
    """
    tx = optax.with_extra_args_support(tx)

    def init_fn(params):
        with warned_of_mistakes(dimension_numbers, params):
            return tx.init(params)

    def update_fn(updates, state, params=None, **extra_args):
        if params is not None:
            params = with_updates_only(params, updates)
            check_shapes(named_leaves(updates), named_leaves(params))
        try:
            return tx.update(updates, state, params, **extra_args)
        except Exception as error:
            # Only now, as it traces `init`; a state of the right form is not the cause.
            if not (isinstance(error, ValueError) and raised_in(error, "optax_matrix")):
                _check_structure(tx, state, updates if params is None else params)
            raise

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def with_updates_only(params: Any, updates: Any) -> Any:
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


def check_shapes(updates: Mapping[str, Any], params: Mapping[str, Any]) -> None:
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


def _check_structure(tx: optax.GradientTransformation, state: Any, params: Any) -> None:
    """Raises if a state has another structure than that of `init`."""
    try:
        wanted = jax.eval_shape(tx.init, params)
    except Exception:  # Then the state is not the cause.
        return
    if jax.tree.structure(state) == jax.tree.structure(wanted):
        return
    must = "`state` must be what `init` of this optimizer makes for these parameters"
    held, needed = _paths(state), _paths(wanted)
    if held == needed:
        raise ValueError(
            f"{must}: its leaves are right, but its containers are others (lists or "
            "dicts instead of named tuples); restore it with tx.init(params) as the "
            "target."
        )
    raise ValueError(
        f"{must}, but it lacks {_listed(needed - held)} and has "
        f"{_listed(held - needed)} instead; pass tx.init(params), or restore a "
        "checkpoint of this optimizer."
    )


def _paths(tree: Any) -> set[str]:
    return {path_name(keys) for keys, _ in jax.tree.leaves_with_path(tree)}


def _listed(paths: set[str]) -> str:
    first = sorted(paths)[:3]
    more = len(paths) - len(first)
    return (", ".join(first) or "nothing") + (f" and {more} more" if more else "")
