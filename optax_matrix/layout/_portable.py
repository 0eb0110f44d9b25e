"""Optimizer state by parameter path instead of by stack, for lasting checkpoints."""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import dtypes
from jax.experimental import multihost_utils
from jaxtyping import Array

from optax_matrix.layout._on_matrices import OnMatricesState
from optax_matrix.layout.groups import FILLER
from optax_matrix.layout.paths import key_name, named_leaves, path_name


def to_portable(state: optax.OptState, params: Any) -> dict[str, Array]:
    """Converts an optimizer state to arrays by parameter path.

    Stacked state becomes, for each leaf, an array ``(matrices of the leaf, ...)`` under
    ``<path in the state>/<path>``. All other state is named by its path in the state.
    The result does not depend on grouping, `max_batch`, sharding or the mesh, and can
    be saved by anything that saves a dict of arrays. Arrays on several devices are
    gathered on the host of every process, so all processes must call this function.

    Args:
        state: State of any optimizer that contains `on_matrices`.
        params: The parameters that the state belongs to; only their paths matter.

    Returns:
        A flat dict.

    Raises:
        ValueError: If the state holds a matrix that is not in `params`.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> tx = on_matrices(optax.trace(0.9))
        >>> params = {"up": {"kernel": jnp.ones((3, 5))}}
        >>> {k: v.shape for k, v in to_portable(tx.init(params), params).items()}
        {'inner_state/trace/up/kernel': (1, 5, 3)}
    """
    paths = {zlib.crc32(path.encode()): path for path in named_leaves(params)}
    flat: dict[str, Array] = {}
    for leaf, entries in _places(state, paths):
        for entry in entries:
            part = _gathered(_raw(leaf))
            flat[entry.key()] = part if entry.rows is None else part[entry.rows]
    return flat


def from_portable(
    portable: Mapping[str, Array],
    state: optax.OptState,
    params: Any,
    *,
    rename: Mapping[str, str] | None = None,
    missing: Literal["error", "init"] = "error",
    unused: Literal["error", "drop"] = "error",
) -> optax.OptState:
    """Fills a fresh optimizer state from its portable form.

    Args:
        portable: Result of `to_portable`, for these or other parameters.
        state: The state to fill, as ``tx.init(params)`` makes it. It determines
            structure, dtypes and sharding.
        params: The parameters that `state` belongs to.
        rename: Old path (or the leading part of one) to new path.
        missing: What to do about state that is missing from `portable` (added layers),
            or that has another shape there and belongs to no parameter (rotations of a
            chain): ``"error"``, or ``"init"`` to keep its initial value.
        unused: What to do about entries that `state` has no place for (removed or
            frozen layers): ``"error"``, or ``"drop"``.

    Returns:
        The filled state.

    Raises:
        ValueError: If entries are missing, unused, or of another shape.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> tx, old = on_matrices(optax.trace(0.9)), {"up": jnp.ones((3, 5))}
        >>> portable = to_portable(tx.init(old), old)
        >>> new = {"gate": jnp.ones((3, 5))}
        >>> state = from_portable(portable, tx.init(new), new, rename={"up": "gate"})
    """
    paths = {zlib.crc32(path.encode()): path for path in named_leaves(params)}
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(state)):
        raise ValueError(
            "`state` must hold arrays, as tx.init(params) makes them, got shapes; its "
            "values stay where `portable` has none."
        )
    leaves, used, absent = [], set(), []
    for leaf, entries in _places(state, paths):
        parts = []
        for entry in entries:
            key = entry.key(rename)
            used.add(key)
            if key not in portable:
                absent.append(key)
            elif not entry.path and np.shape(portable[key]) != np.shape(_raw(leaf)):
                absent.append(f"{key} of shape {np.shape(_raw(leaf))}")
            else:
                parts.append((entry.rows, portable[key], key))
        leaves.append(_fill(leaf, parts) if parts else leaf)
    if absent and missing == "error":
        raise ValueError(_complaint("has no state for", absent, "missing", "init"))
    if (extra := sorted(set(portable) - used)) and unused == "error":
        raise ValueError(_complaint("holds state of no use:", extra, "unused", "drop"))
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def check_restored(state: optax.OptState) -> None:
    """Checks that the stacks of a restored state hold the matrices of their names.

    A restore by position instead of by name can give one layer the momentum of another;
    then names and contents disagree. Call this after restoring a checkpoint by any
    other means than `from_portable`.

    Args:
        state: A restored optimizer state with concrete arrays.

    Raises:
        ValueError: If a stack holds other matrices than those of its name.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from optax_matrix import on_matrices
        >>> check_restored(on_matrices(optax.trace(0.9)).init({"up": jnp.ones((3, 5))}))
    """
    is_ours = lambda x: isinstance(x, OnMatricesState)
    for node in filter(is_ours, jax.tree.leaves(state, is_leaf=is_ours)):
        for name, leaf in node.manifest.items():
            ids = _on_host(jax.tree.leaves(leaf)[0])
            if not name.endswith(f"@{zlib.crc32(ids.tobytes()):08x}"):
                raise ValueError(
                    f"`state` must hold in stack {name!r} the matrices that it is "
                    "named after, but holds others: it was restored by position from "
                    "the state of other parameters; save optax_matrix.to_portable("
                    "state, params) and restore by from_portable(..., rename=...)."
                )


@dataclasses.dataclass(frozen=True)
class _Entry:
    """Part of a state leaf: its path in the state, parameter path, rows of a stack."""

    place: str
    path: str
    rows: np.ndarray | None = None

    def key(self, rename: Mapping[str, str] | None = None) -> str:
        """The portable key; with `rename` (old to new), the old one."""
        path = self.path
        for old, new in (rename or {}).items():
            if path == new or path.startswith((f"{new}/", f"{new}#")):
                path = old + path[len(new) :]
                break
        return "/".join(part for part in (self.place, path) if part)


def _places(state: Any, paths: Mapping[int, str]) -> Iterator[tuple[Any, list[_Entry]]]:
    """Every leaf of the state with the portable entries that it consists of.

    Manifests have no entries, as they follow from the parameters.
    """
    manifests, known = _manifests(state), set(paths.values())
    for keys, leaf in jax.tree.leaves_with_path(state):
        owner = next((k for k in manifests if keys[: len(k)] == k), None)
        if owner is None:
            yield leaf, [_Entry(*_split(keys, known))]
            continue
        if key_name(keys[len(owner)]) == "manifest":
            yield leaf, []
            continue
        manifest = manifests[owner]
        place = path_name(tuple(k for k in keys if key_name(k) not in manifest))
        group = next((key_name(k) for k in keys if key_name(k) in manifest), None)
        if group is None:
            yield leaf, [_Entry(place, "")]
            continue
        rows = _rows_by_path(manifest[group], paths)
        scalar = jnp.ndim(leaf) == 0
        yield (
            leaf,
            [_Entry(place, path, None if scalar else at) for path, at in rows.items()],
        )


def _split(keys: tuple, known: set[str]) -> tuple[str, str]:
    """Path in the state and parameter path of a leaf like a parameter, as Adam has."""
    for start in range(len(keys)):
        if (path := path_name(keys[start:])) in known:
            return "/".join(map(key_name, keys[:start])), path
    return path_name(keys), ""


def _manifests(state: Any) -> dict[tuple, dict[str, np.ndarray]]:
    is_ours = lambda x: isinstance(x, OnMatricesState)
    nodes = jax.tree.leaves_with_path(state, is_leaf=is_ours)
    return {
        keys: {
            name: _on_host(jax.tree.leaves(ids)[0])
            for name, ids in node.manifest.items()
        }
        for keys, node in nodes
        if is_ours(node)
    }


def _rows_by_path(ids: np.ndarray, paths: Mapping[int, str]) -> dict[str, np.ndarray]:
    """Stack positions of each leaf's matrices; further pieces are named ``path#k``."""
    rows: dict[str, list[int]] = {}
    for position, (crc, index) in enumerate(ids.tolist()):
        if (crc, index) == FILLER:
            continue
        if crc not in paths:
            raise ValueError(
                "`params` must be the parameters that the state belongs to, but the "
                f"state holds a matrix of a leaf (crc32 of its path {crc:#010x}) that "
                "they do not have."
            )
        piece = f"#{index >> 20}" if index >> 20 else ""
        rows.setdefault(paths[crc] + piece, []).append(position)
    return {
        path: np.array(sorted(at, key=lambda i: ids[i, 1])) for path, at in rows.items()
    }


def _fill(leaf: Any, parts: list[tuple[np.ndarray | None, Any, str]]) -> Any:
    """The leaf with its parts replaced, on the host, as shardings may differ."""
    new = np.array(_on_host(_raw(leaf)))
    for rows, value, key in parts:
        shape = new.shape if rows is None else (len(rows), *new.shape[1:])
        if np.shape(value) != shape:
            raise ValueError(
                f"`portable` must hold an array of shape {shape} for {key!r}, got "
                f"{np.shape(value)}; the layer's shape or dimension numbers changed."
            )
        new[... if rows is None else rows] = np.asarray(value)
    if _is_key(leaf):
        new = jax.random.wrap_key_data(jnp.asarray(new), impl=jax.random.key_impl(leaf))
    if not isinstance(leaf, jax.Array):
        return new
    # An uncommitted array, such as Adam's count, must stay uncommitted.
    return jax.device_put(new, leaf.sharding) if leaf.committed else jnp.asarray(new)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """The leaf, with the raw data of random keys."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _gathered(x: Any) -> Any:
    """The array, moved to the host if it is on several devices."""
    several = isinstance(x, jax.Array) and len(x.sharding.device_set) > 1
    return _on_host(x) if several else x


def _on_host(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)


def _complaint(what: str, keys: list[str], argument: str, value: str) -> str:
    shown = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if keys[4:] else "")
    return (
        f"`portable` {what} {shown}; pass rename={{old path: new path}}, or "
        f"{argument}={value!r} if that is meant."
    )
