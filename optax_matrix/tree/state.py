"""The state of `on_matrices`, and whose it is."""

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array


class OnMatricesState(NamedTuple):
    """State of `on_matrices`.

    Attributes:
        method: One entry: its key is the name of the method, its value the crc32 of
            that name, uint32 ``()``. Empty if the method has no name. A restore by name
            compares the keys. If key and value disagree, the state was restored by
            position.
        manifest: For each group its matrices in stack order, uint32 ``(count, 4)``:
            crc32 of the leaf's path, position in the leaf, crc32 of the leaf's shape,
            crc32 of the axes that are rows and columns.
        inner_state: State of the transformation of the stacks. Leaves under a group's
            name are per matrix (batch axis in front) or scalars.
        after: State of the transformation `after`, None without one.
        other: State of the optimizer of the other leaves, None without one.
    """

    method: dict[str, Array]
    manifest: dict[str, Array]
    inner_state: optax.OptState
    after: Any = None
    other: Any = None


def is_state(node: Any) -> bool:
    """Whether a node of a tree is a state of `on_matrices`."""
    return isinstance(node, OnMatricesState)


def states_in(tree: Any, above: tuple = ()) -> Iterator[tuple[tuple, OnMatricesState]]:
    """Every state of `on_matrices` in a tree with its keys; `other` may hold more."""
    for keys, node in jax.tree.leaves_with_path(tree, is_leaf=is_state):
        if is_state(node):
            yield (keys := above + keys), node
            for name in ("after", "other"):
                inside = (*keys, jax.tree_util.GetAttrKey(name))
                yield from states_in(getattr(node, name), inside)


def entry_of(method: str | None) -> dict[str, Array]:
    """The field ``method`` of a state."""
    return {} if method is None else {method: jnp.asarray(_number(method))}


def check_method(state: Any, method: str | None) -> None:
    """Raises unless a state is one of `on_matrices`, and that of this method."""
    wanted = "one without a name" if method is None else f"that of {method}"
    if not is_state(state):
        raise ValueError(
            f"`state` must be {wanted}, as `init` of `on_matrices` makes it, got "
            f"{type(state).__name__}; pass the state of this transformation."
        )
    if set(state.method) != set(entry_of(method)):
        held = [f"that of {name}" for name in state.method]
        raise ValueError(
            f"`state` must be {wanted}, got {', '.join(held) or 'one without a name'}; "
            "pass tx.init(params), or carry the arrays over with "
            "optax_matrix.to_portable and from_portable."
        )
    check_position(state)


def check_position(state: OnMatricesState) -> None:
    """Raises if the state's number is visible and is not that of the method's name."""
    for name, number in state.method.items():
        (number,) = jax.tree.leaves(number)  # NNX wraps arrays.
        if _is_visible(number) and int(number) != _number(name):
            raise ValueError(
                f"`state` is labeled as the state of {name}, but its number is that of "
                "another method, so it was restored by position; save "
                "optax_matrix.to_portable(state, params) and restore by from_portable."
            )


def _is_visible(x: Any) -> bool:
    if isinstance(x, jax.core.Tracer) or not hasattr(x, "__array__"):
        return False
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def _number(method: str) -> np.uint32:
    return np.uint32(zlib.crc32(method.encode()))
