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
)
from optax_matrix.checkpoint._kinds import check_signs, typed
from optax_matrix.checkpoint._origin import origins
from optax_matrix.checkpoint._packed import Numbers, is_rounding
from optax_matrix.checkpoint._refusals import (
    check_flat,
    check_moves,
    check_params,
    missing_state,
    nothing_fits,
    unused_state,
)
from optax_matrix.checkpoint.compacting import compact
from optax_matrix.checkpoint.gathering import on_host, spread
from optax_matrix.stacks.identities import paths_by_checksum
from optax_matrix.tree.holders import check_itself, held_state


def to_portable(state: optax.OptState, params: Any) -> dict[str, Array]:
    """Converts an optimizer state to arrays by parameter path.

    Stacked state becomes, for each leaf, an array ``(matrices of the leaf, ...)`` under
    ``<path in the state>/<path>``. All other state is named by its path in the state.
    Entries under ``method``, ``manifest`` and ``sides`` name the method, the axes of
    each leaf that were rows and columns, and the side on which blocks work. Moments in
    eight bits have the same names as others; those under ``scales`` hold the meaning of
    their codes. The result does not depend on grouping, ``max_batch``, sharding or the
    mesh, and can be saved by anything that saves a dict of arrays, `numpy.savez`
    included. Arrays on several devices are gathered on the host of every process, so
    all processes must call this function. Meanwhile a device holds at most 256 MiB of
    the parts of other devices. Arrays on one device that are no stacks are not copied:
    save them before a step that donates the state.

    Args:
        state: State of any optimizer that contains `on_matrices`, or what holds it as
            ``opt_state`` (``nnx.Optimizer``, Linen's ``TrainState``).
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
    check_params(params, "to_portable(state, params)")
    paths = paths_by_checksum(named_leaves(params))
    state = held_state(state, "state")
    check_values(state, "state")
    state, _ = compact(state)
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

    If only one of the two states is `quantized` (or has `quantize_state`), or if their
    options differ, moments are converted.

    Args:
        portable: Result of `to_portable`, for these or other parameters.
        state: The state to fill, as ``tx.init(params)`` returns it. It determines
            structure, dtypes and sharding.
        params: The parameters that `state` belongs to.
        rename: Old path (or the leading part of one) to new path. The longest old path
            counts, and ``""`` is the start of all paths. A parameter of `params` with
            an old path is treated as a new parameter.
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
        ValueError: If entries are missing, unused, of another shape or another kind of
            number, or negative in a second moment; if they are of another method, of
            other axes of the same leaf (another orientation of a square matrix, another
            order of heads) or of another ``side``; if a renaming concerns nothing, or
            nothing fits; if arrays are traced. To carry state over to another method on
            purpose, leave out its entries ``method/...``; sides are not compared then.
            To use turned arrays of the same method, leave out ``sides/...``.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> tx, old = on_matrices(optax.trace(0.9)), {"up": jnp.ones((3, 5))}
        >>> portable = to_portable(tx.init(old), old)
        >>> new = {"gate": jnp.ones((3, 5))}
        >>> state = from_portable(portable, tx.init(new), new, rename={"up": "gate"})
    """
    check_params(params, "from_portable(portable, state, params)")
    check_itself(state, "state")
    check_flat(portable)
    paths = paths_by_checksum(named_leaves(params))
    check_values(state, "state")
    check_values(dict(portable), "portable")
    state, in_place = compact(state)
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
    check_moves(moves, found, portable, paths)
    if absent and missing == "error":
        raise ValueError(missing_state(absent, portable))
    extra = sorted(k for k in set(portable) - used if not is_rounding(k, portable[k]))
    if extra and unused == "error":
        raise ValueError(unused_state(extra))
    if absent and extra and not any(key in portable for _, _, key in found):
        raise ValueError(nothing_fits(absent, extra))
    return in_place(jax.tree.unflatten(jax.tree.structure(state), leaves))


def _fill(leaf: Any, parts: list[tuple[Entry, Any, str]]) -> Any:
    """The leaf with its parts replaced, which are rows of it or all of it."""
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
        value = typed(value, dtype, key, alone=entry.is_whole)
        if entry.is_unsigned:
            check_signs(value, key, "portable")
        values.append((rows, value))
    whole = tuple(map(slice, shape))
    if not isinstance(leaf, jax.Array):
        return _filled(raw, whole, values)
    if leaf.committed:
        old = {_place(shard.index): shard.data for shard in raw.addressable_shards}
        fill = lambda at: _filled(old[_place(at)], at, values)
        new = spread(raw, fill)
    else:  # It must stay so, such as Adam's count.
        new = jnp.asarray(_filled(raw, whole, values))
    if _is_key(leaf):
        return jax.random.wrap_key_data(new, impl=jax.random.key_impl(leaf))
    return new


def _filled(part: Any, at: Any, values: list) -> np.ndarray:
    """A part of an array, filled with its part of the values."""
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


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """The leaf, with the raw data of random keys."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _gathered(x: Any) -> Any:
    """The array, moved to the host if it is on several devices or in its memory."""
    if not isinstance(x, jax.Array):
        return x
    several = len(x.sharding.device_set) > 1
    return on_host(x) if several or x.sharding.memory_kind == "pinned_host" else x
