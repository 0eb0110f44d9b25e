"""Optimizer state by parameter path instead of by stack, for lasting checkpoints."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import dtypes
from jaxtyping import Array

from optax_matrix._arguments import checked
from optax_matrix._paths import named_leaves
from optax_matrix.checkpoint._entries import (
    Entry,
    Moves,
    check_values,
    entries_by_leaf,
    is_in,
)
from optax_matrix.checkpoint._kinds import check_signs, typed
from optax_matrix.checkpoint._origin import origins
from optax_matrix.checkpoint._packed import Numbers, is_rounding
from optax_matrix.checkpoint.gathering import on_host
from optax_matrix.stacks.checksums import paths_by_checksum
from optax_matrix.tree.holders import check_itself, held_state
from optax_matrix.tree.state import states_in


def to_portable(state: optax.OptState, params: Any) -> dict[str, Array]:
    """Converts an optimizer state to arrays by parameter path.

    Stacked state becomes, for each leaf, an array ``(matrices of the leaf, ...)`` under
    ``<path in the state>/<path>``. All other state is named by its path in the state.
    Entries under ``method`` and ``manifest`` say whose state it is and which axes of
    each leaf were rows and columns. The result does not depend on grouping,
    ``max_batch``, sharding or the mesh, and can be saved by anything that saves a dict
    of arrays, `numpy.savez` included. Arrays on several devices are gathered on the
    host of every process, so all processes must call this function. Devices hold at
    most 256 MiB of others' parts meanwhile. Arrays on one device that are no stacks are
    those of the state: save them before a step that donates it.

    Args:
        state: State of any optimizer that contains `on_matrices`, or what holds it as
            ``opt_state`` (`nnx.Optimizer`, Linen's ``TrainState``).
        params: The parameters that the state belongs to; only their paths matter.

    Returns:
        A flat dict.

    Raises:
        ValueError: If the state holds a matrix that is not in `params`, is that of
            several runs at once (`jax.vmap`), or is traced.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> tx = on_matrices(optax.trace(0.9))
        >>> params = {"up": {"kernel": jnp.ones((3, 5))}}
        >>> {k: v.shape for k, v in to_portable(tx.init(params), params).items()}
        {'manifest/up/kernel': (2,), 'inner_state/trace/up/kernel': (1, 5, 3)}
    """
    _check_params(params, "to_portable(state, params)")
    paths = paths_by_checksum(named_leaves(params))
    state = held_state(state, "state")
    check_values(state, "state")
    flat: dict[str, Any] = {}
    for origin in origins(state, paths):
        flat |= origin.entries()
    for leaf, entries in entries_by_leaf(state, paths):
        for entry in entries:
            part = _gathered(_raw(leaf))
            flat[entry.key] = part if entry.rows is None else part[entry.rows]
    return flat


@checked
def from_portable(
    portable: Mapping[str, Array],
    state: optax.OptState,
    params: Any,
    *,
    rename: Mapping[str, str] | None = None,
    places: Mapping[str, str] | None = None,
    missing: Literal["error", "init"] = "error",
    unused: Literal["error", "drop"] = "error",
) -> optax.OptState:
    """Fills a fresh optimizer state from its portable form.

    Args:
        portable: Result of `to_portable`, for these or other parameters.
        state: The state to fill, as ``tx.init(params)`` makes it. It determines
            structure, dtypes and sharding.
        params: The parameters that `state` belongs to.
        rename: Old path (or the leading part of one) to new path. The longest old path
            counts, and ``""`` is that of all paths. A parameter whose path is an old
            one here is new.
        places: Old place of a state in the whole one (or the leading part of it) to new
            place, where the optimizer was wrapped or unwrapped: ``{"": "1"}`` if ``tx``
            is now the second of an `optax.chain`, ``{"": "inner_state"}`` inside
            `inject_hyperparams`, ``{"1": ""}`` for the way back. State of the wrapper
            itself is missing from `portable`.
        missing: What to do about state that is missing from `portable` (added layers),
            or that has another shape there and belongs to no parameter (rotations of a
            chain): ``"error"``, or ``"init"`` to keep its initial value.
        unused: What to do about entries that `state` has no place for (removed or
            frozen layers): ``"error"``, or ``"drop"``.

    Returns:
        The filled state.

    Raises:
        ValueError: If entries are missing, unused, or of another shape; if they are of
            another method, or of other axes of the same leaf (another orientation of a
            square matrix, another order of heads); if a renaming concerns nothing; if
            arrays are traced. To carry state over to another method on purpose, leave
            out its entries under ``method``.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> tx, old = on_matrices(optax.trace(0.9)), {"up": jnp.ones((3, 5))}
        >>> portable = to_portable(tx.init(old), old)
        >>> new = {"gate": jnp.ones((3, 5))}
        >>> state = from_portable(portable, tx.init(new), new, rename={"up": "gate"})
    """
    _check_params(params, "from_portable(portable, state, params)")
    check_itself(state, "state")
    _check_flat(portable)
    paths = paths_by_checksum(named_leaves(params))
    check_values(state, "state")
    check_values(dict(portable), "portable")
    moves = Moves(rename or {}, places or {})
    numbers = Numbers(portable)
    leaves, used, absent, found = [], set[str](), [], []
    for origin in origins(state, paths):
        used |= origin.check(portable, moves)
    for leaf, entries in entries_by_leaf(state, paths):
        parts = []
        for entry in entries:
            before = entry.before(moves)
            key = entry.key if before is None else before.key
            if before is not None:
                used |= numbers.keys_of(key)
                found.append((before, entry, key))
            if before is None or key not in portable:
                absent += [] if entry.is_derived else [key]
                continue
            value = numbers.of(key, entry.packed)
            if entry.is_whole and np.shape(value) != np.shape(_raw(leaf)):
                absent.append(f"{key} of shape {np.shape(_raw(leaf))}")
            else:
                parts.append((entry, value, key))
        leaves.append(_fill(leaf, parts) if parts else leaf)
    _check_moves(moves, found, portable, paths)
    if absent and missing == "error":
        raise ValueError(_complaint("has no state for", absent, "missing", "init"))
    extra = sorted(key for key in set(portable) - used if not is_rounding(key))
    if extra and unused == "error":
        raise ValueError(_complaint("holds state of no use:", extra, "unused", "drop"))
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def _check_params(params: Any, call: str) -> None:
    if next(states_in(params), None):
        raise ValueError(f"`params` must be the parameters, got a state; write {call}.")


def _check_flat(portable: Any) -> None:
    nested = isinstance(portable, Mapping) and [
        key for key, x in portable.items() if isinstance(x, (Mapping, tuple, list))
    ]
    if not isinstance(portable, Mapping) or nested:
        got = f"a tree under {nested[0]!r}" if nested else type(portable).__name__
        raise ValueError(
            "`portable` must be what to_portable returns, a dict of arrays by name, "
            f"got {got}; write from_portable(portable, state, params)."
        )


def _fill(leaf: Any, parts: list[tuple[Entry, Any, str]]) -> Any:
    """The leaf with its parts replaced, which are rows of it or all of it.

    Each process fills what its own devices hold. Nothing is sent between devices.
    """
    raw, values = _raw(leaf), []
    shape = np.shape(raw)
    dtype = raw.dtype if hasattr(raw, "dtype") else np.asarray(raw).dtype
    for entry, value, key in parts:
        rows = entry.rows
        wanted = shape if rows is None else (len(rows), *shape[1:])
        if np.shape(value) != wanted:
            raise ValueError(
                f"`portable` must hold an array of shape {wanted} for {key!r}, got "
                f"{np.shape(value)}: the layer's shape or dimension numbers changed; "
                "pad or cut the array to that shape in `portable` (new rows of a "
                "vocabulary get zeros), or leave it out and pass missing='init'."
            )
        value = typed(value, dtype, key)
        check_signs(value, entry.field, rows is not None, key, "portable")
        values.append((rows, value))
    whole = tuple(map(slice, shape))
    if not isinstance(leaf, jax.Array):
        return _filled(raw, whole, values)
    if leaf.committed:
        old = {_place(shard.index): shard.data for shard in raw.addressable_shards}
        new = jax.make_array_from_callback(
            shape, raw.sharding, lambda at: _filled(old[_place(at)], at, values)
        )
    else:  # It must stay so, such as Adam's count.
        new = jnp.asarray(_filled(raw, whole, values))
    if _is_key(leaf):
        return jax.random.wrap_key_data(new, impl=jax.random.key_impl(leaf))
    return new


def _filled(part: Any, at: Any, values: list) -> np.ndarray:
    """A part of an array, with what of the values belongs there."""
    new = np.array(part)
    for rows, value in values:
        if rows is None:
            new[...] = value[at]
        else:
            places = rows - (at[0].start or 0)
            here = (places >= 0) & (places < len(new))
            new[places[here]] = value[here, *at[1:]]
    return new


def _place(at: Any) -> tuple:
    """The index of a shard, as a key: slices have no hash before Python 3.12."""
    return tuple((one.start or 0, one.stop) for one in at)


def _check_moves(
    moves: Moves,
    found: list[tuple[Entry, Entry, str]],
    portable: Mapping[str, Any],
    paths: Mapping[int, str],
) -> None:
    """Raises if a move has nothing to give state to, or nothing to take it from.

    ``found`` are every entry of the state as it was, as it is, and its old key.
    """
    for old, new in moves.places.items():
        keys = [k for was, now, k in found if is_in(now.place, new)]
        if not any(key in portable for key in keys):
            raise ValueError(
                f"`places` must move state from {old!r} in `portable` to {new!r} in "
                "`state`, but there is none in both; correct it, or leave it out."
            )
    for old, new in moves.rename.items():
        if not any(is_in(path, new) for path in paths.values()):
            raise ValueError(
                f"`rename` must give paths of `params`, got {new!r}, which `params` do "
                "not have; correct it, or leave it out."
            )
        keys = [
            k for was, now, k in found if is_in(was.path, old) and is_in(now.path, new)
        ]
        if keys and not any(key in portable for key in keys):
            why = "does not have; correct it, or leave it out"
            if any(f"/{old}/" in f"/{key}/" for key in portable):
                why = (
                    f"has, but under other fields than {keys[0]!r}: the parameter was "
                    "no matrix, or is none now; keep that by `dimension_numbers`, or "
                    "drop its state and pass missing='init'"
                )
            raise ValueError(
                f"`rename` must take paths of `portable`, got {old!r}, which "
                f"`portable` {why}."
            )


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """The leaf, with the raw data of random keys."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _gathered(x: Any) -> Any:
    """The array, moved to the host if it is on several devices."""
    several = isinstance(x, jax.Array) and len(x.sharding.device_set) > 1
    return on_host(x) if several else x


def _complaint(what: str, keys: list[str], argument: str, value: str) -> str:
    shown = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if keys[4:] else "")
    return (
        f"`portable` {what} {shown}; pass rename={{old path: new path}}, or "
        f"{argument}={value!r} if that is meant, or it was written by another version "
        "of optax_matrix."
    )
