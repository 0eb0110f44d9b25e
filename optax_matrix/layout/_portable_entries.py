"""The entries of the portable form that each leaf of a state consists of."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from optax_matrix.layout._on_matrices import OnMatricesState
from optax_matrix.layout.groups import FILLER
from optax_matrix.layout.paths import key_name, path_name


@dataclasses.dataclass(frozen=True)
class Entry:
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


def entries_by_leaf(
    state: Any, paths: Mapping[int, str]
) -> Iterator[tuple[Any, list[Entry]]]:
    """Every leaf of the state with the portable entries that it consists of.

    Manifests have no entries, as they follow from the parameters.
    """
    manifests, known = _manifests(state), set(paths.values())
    for keys, leaf in jax.tree.leaves_with_path(state):
        owner = next((k for k in manifests if keys[: len(k)] == k), None)
        if owner is None:
            yield leaf, [Entry(*_split(keys, known))]
            continue
        if key_name(keys[len(owner)]) == "manifest":
            yield leaf, []
            continue
        manifest = manifests[owner]
        place = path_name(tuple(k for k in keys if key_name(k) not in manifest))
        group = next((key_name(k) for k in keys if key_name(k) in manifest), None)
        if group is None:
            yield leaf, [Entry(place, "")]
            continue
        rows = _rows_by_path(manifest[group], paths)
        scalar = jnp.ndim(leaf) == 0
        yield (
            leaf,
            [Entry(place, path, None if scalar else at) for path, at in rows.items()],
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
            name: on_host(jax.tree.leaves(ids)[0])
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


def on_host(x: Any) -> np.ndarray:
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
