"""The state of `on_matrices`, and whose it is."""

import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from optax_matrix._paths import leaves_with_keys, path_name


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
        sides: For each group of which blocks rotate or project a side one entry: its
            key is that side, its value the crc32 of it, as in ``method``. The arrays of
            a square matrix do not tell.
        inner_state: State of the transformation of the stacks. Leaves under a group's
            name are per matrix (batch axis in front) or scalars.
        after: State of the transformation `after`, None without one.
        other: State of the optimizer of the other leaves, None without one.
        zero_gradients: For each group the number of zero gradients in a row of each
            matrix, int32 ``(count,)``; None unless updates fade with it.
        slots: Arrays of state that several groups share (``stacks.slots``), or None.
    """

    method: dict[str, Array]
    manifest: dict[str, Array]
    sides: dict[str, dict[str, Array]]
    inner_state: optax.OptState
    after: Any = None
    other: Any = None
    zero_gradients: Any = None
    slots: Any = None


def is_ours(error: Exception) -> bool:
    """Whether an error says what to do already: its last frame is in this package."""
    if not isinstance(error, ValueError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] == "optax_matrix"


def check_structure(init: Callable, state: Any, params: Any) -> None:
    """Raises if a state has another structure than that of `init`."""
    try:
        wanted = jax.eval_shape(init, params)
    except Exception:  # Then the state is not the cause.
        return
    if jax.tree.structure(state) == jax.tree.structure(wanted):
        return
    must = "`state` must be what `init` of this optimizer makes for these parameters"
    held, needed = _paths(state), _paths(wanted)
    if held == needed:
        raise ValueError(
            f"{must}: the arrays match, but the container types differ; after "
            "tx.init(model) of an NNX model call tx.init(nnx.state(model, nnx.Param)), "
            "and restore checkpoints with tx.init(params) as the target."
        )
    differences = {"lacks": needed - held, "has the extra entries": held - needed}
    found = [f"{what} {_listed(paths)}" for what, paths in differences.items() if paths]
    raise ValueError(
        f"{must}, but it {' and '.join(found)}; pass tx.init(params), restore a "
        "checkpoint of this optimizer, or pass updates for all its parameters; or it "
        "was written by another version of optax_matrix."
    )


def _paths(tree: Any) -> set[str]:
    return {path_name(keys) for keys, _ in leaves_with_keys(tree)}


def _listed(paths: set[str]) -> str:
    first = sorted(paths)[:3]
    more = len(paths) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


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
    """The field ``method`` of a state: a name, and its crc32."""
    return {} if method is None else {method: jnp.asarray(_number(method))}


def entries_of(sides: Mapping[str, str]) -> dict[str, dict[str, Array]]:
    """The field ``sides`` of a state."""
    return {group: entry_of(side) for group, side in sides.items()}


def sides_of(state: OnMatricesState) -> dict[str, str]:
    """The sides of each group."""
    return {group: next(iter(entry)) for group, entry in state.sides.items()}


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
    check_one_run(state)


def check_position(state: OnMatricesState) -> None:
    """Raises if the state's labels are not where `init` puts them.

    Their numbers are compared where they are visible. Of several runs at once, as
    `jax.vmap` of `init` makes them, each has its own.
    """
    runs = runs_of(state)
    named = [("the state of {}", "method", state.method)]
    named += [(f"that of side {{}} of {g}", "side", x) for g, x in state.sides.items()]
    for what, kind, entry in named:
        for name, leaf in entry.items():
            (number,) = jax.tree.leaves(leaf)  # NNX wraps arrays.
            other = _is_visible(number) and (np.asarray(number) != _number(name)).any()
            if other or not _has(number, runs):
                raise ValueError(
                    f"`state` is labeled as {what.format(name)}, but its number is "
                    f"that of another {kind}, so it {_BY_POSITION}"
                )


def runs_of(state: OnMatricesState) -> tuple[int, ...]:
    """The axes that the state of several runs has in front; ``()`` for one run."""
    manifest = [x for leaf in state.manifest.values() for x in jax.tree.leaves(leaf)]
    found = {np.shape(x)[:-2] for x in manifest}
    if len(found) > 1 or not all(_has(x, (*np.shape(x)[:-1], 4)) for x in manifest):
        raise ValueError(
            "`state` must hold under `manifest` which matrices its stacks consist of, "
            f"but holds other arrays there, so it {_BY_POSITION}"
        )
    numbers = map(np.shape, jax.tree.leaves(state.method))
    return next(iter(found or numbers), ())


def check_one_run(state: OnMatricesState) -> None:
    """Raises if a state is that of several runs at once."""
    if runs := runs_of(state):
        raise ValueError(
            f"`state` must be that of one run, but has the axes {runs} of several in "
            "front, as jax.vmap(tx.init) makes them; take one run by jax.tree.map("
            "lambda x: x[0], state), or call `update` under jax.vmap."
        )


_BY_POSITION = (
    "was restored by position; save optax_matrix.to_portable(state, params) and "
    "restore by from_portable, or restore with tx.init(params) as the target."
)


def _has(x: Any, shape: tuple[int, ...]) -> bool:
    """Whether this is an array of labels of this shape."""
    dtype = getattr(x, "dtype", None)
    return np.shape(x) == shape and dtype is not None and dtype.kind == "u"


def _is_visible(x: Any) -> bool:
    if isinstance(x, jax.core.Tracer) or not hasattr(x, "__array__"):
        return False
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def _number(method: str) -> np.uint32:
    return np.uint32(zlib.crc32(method.encode()))
