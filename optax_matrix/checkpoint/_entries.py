"""The entries of the portable form that each leaf of a state consists of."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_matrix.checkpoint.gathering import on_host
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.matrices.paths import key_name, path_name
from optax_matrix.stacks.layout import FILLER
from optax_matrix.tree.state import is_state, states_in


@dataclasses.dataclass(frozen=True)
class Entry:
    """Part of a state leaf: its path in the state, parameter path, rows of a stack."""

    place: str
    path: str
    rows: np.ndarray | None = None

    @property
    def key(self) -> str:
        """The key in the portable form."""
        return "/".join(part for part in (self.place, self.path) if part)

    def before(self, rename: Mapping[str, str]) -> "Entry | None":
        """This entry before paths were renamed (old to new); None if it is new."""
        path = old_path(self.path, rename)
        return None if path is None else dataclasses.replace(self, path=path)


def old_path(path: str, rename: Mapping[str, str]) -> str | None:
    """The path that a parameter had before; None if that path has another name now."""
    moved = [old + path[len(new) :] for old, new in rename.items() if is_in(path, new)]
    return next((old for old in (*moved, path) if _renamed(old, rename) == path), None)


def is_in(path: str, part: str) -> bool:
    """Whether a path is this one or begins with it."""
    return path == part or path.startswith((f"{part}/", f"{part}#"))


def _renamed(path: str, rename: Mapping[str, str]) -> str:
    known = max((old for old in rename if is_in(path, old)), key=len, default=None)
    return path if known is None else rename[known] + path[len(known) :]


def entries_by_leaf(
    state: Any, paths: Mapping[int, str]
) -> Iterator[tuple[Any, list[Entry]]]:
    """Every leaf of the state with the portable entries that it consists of.

    What states of `on_matrices` say about themselves is not among them (`origins`).
    """
    bare = lambda node: unboxed(node)[0] if is_state(node) else node
    state = jax.tree.map(bare, state, is_leaf=is_state)
    manifests, known = manifests_of(state), set(paths.values())
    for keys, leaf in jax.tree.leaves_with_path(state):
        owners = [k for k in manifests if keys[: len(k)] == k]
        owner = max(owners, key=len, default=None)
        field = None if owner is None else key_name(keys[len(owner)])
        if owner is None or field in ("after", "other"):
            yield leaf, [Entry(*_split(keys, known))]
            continue
        if field in ("manifest", "method"):
            yield leaf, []
            continue
        manifest = manifests[owner]
        place = path_name(tuple(k for k in keys if key_name(k) not in manifest))
        group = next((key_name(k) for k in keys if key_name(k) in manifest), None)
        if group is None:
            yield leaf, [Entry(place, "")]
            continue
        rows = rows_by_path(manifest[group], paths)
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


def manifests_of(state: Any) -> dict[tuple, dict[str, np.ndarray]]:
    """The manifest of every state of `on_matrices`, by the keys of that state."""
    return {
        keys: {
            name: on_host(jax.tree.leaves(rows)[0])
            for name, rows in node.manifest.items()
        }
        for keys, node in states_in(state)
    }


def rows_by_path(
    manifest: np.ndarray, paths: Mapping[int, str]
) -> dict[str, np.ndarray]:
    """Stack positions of each leaf's matrices; further pieces are named ``path#k``."""
    rows: dict[str, list[int]] = {}
    for position, (crc, index) in enumerate(manifest[:, :2].tolist()):
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
        path: np.array(sorted(at, key=lambda i: manifest[i, 1]))
        for path, at in rows.items()
    }
