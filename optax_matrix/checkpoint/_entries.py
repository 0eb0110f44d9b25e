"""The entries of the portable form that each leaf of a state consists of."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_matrix._paths import key_name, path_name
from optax_matrix.checkpoint._known import Known, known_leaves
from optax_matrix.checkpoint._packed import Packed, as_plain, quantized_nodes
from optax_matrix.checkpoint.gathering import on_host
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.stacks.identities import FILLER
from optax_matrix.tree.state import (
    OnMatricesState,
    check_one_run,
    check_position,
    is_state,
    states_in,
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Part of a state leaf: its path in the state, parameter path, rows of a stack.

    ``packed`` is its role in a moment of eight or four bits, with the place of that
    moment, and ``leaf`` is what is known of the leaf.
    """

    place: str
    path: str
    rows: np.ndarray | None = None
    packed: Packed | None = None
    leaf: Known | None = None

    @property
    def key(self) -> str:
        """The key in the portable form."""
        return "/".join(part for part in (self.place, self.path) if part)

    @property
    def is_derived(self) -> bool:
        """Whether it exists only because the state is in fewer bits."""
        is_scales = self.packed is not None and not self.packed.codes
        return is_scales or (self.leaf is not None and self.leaf.counts_roundings)

    @property
    def is_unsigned(self) -> bool:
        """Whether it cannot be negative."""
        return self.leaf is not None and self.leaf.is_unsigned

    @property
    def is_whole(self) -> bool:
        """Whether it belongs to no parameter."""
        return not self.path and self.rows is None

    def before(self, moves: "Moves") -> "Entry | None":
        """This entry before it was moved; None if it is new.

        For scales this is the moment, from which they can be computed.
        """
        path = _old(self.path, moves.rename) if self.path else ""
        place = self.place if self.packed is None else self.packed.moment
        place = _old(place, moves.places)
        return None if path is None or place is None else Entry(place, path, self.rows)


@dataclasses.dataclass(frozen=True)
class Moves:
    """Names that changed since a portable form was written, old to new.

    Attributes:
        rename: Paths of parameters, or their leading parts.
        places: Places in the state, or their leading parts.
    """

    rename: Mapping[str, str]
    places: Mapping[str, str]


def is_in(path: str, part: str) -> bool:
    """Whether a path is this one or starts with it."""
    return not part or path == part or path.startswith((f"{part}/", f"{part}#"))


def _old(path: str, moved: Mapping[str, str]) -> str | None:
    """The path before it was moved; None if that path has another name now."""
    known = [_swapped(path, new, old) for old, new in moved.items() if is_in(path, new)]
    return next((old for old in (*known, path) if _new(old, moved) == path), None)


def _new(path: str, moved: Mapping[str, str]) -> str:
    known = max((old for old in moved if is_in(path, old)), key=len, default=None)
    return path if known is None else _swapped(path, known, moved[known])


def _swapped(path: str, lead: str, other: str) -> str:
    """The path with another leading part; either may be empty."""
    rest = path[len(lead) :]
    if lead and other:
        return other + rest
    return "/".join(part for part in (other, rest.removeprefix("/")) if part)


def entries_by_leaf(
    state: Any, paths: Mapping[int, str]
) -> Iterator[tuple[Any, list[Entry]]]:
    """Every leaf of the state with the portable entries that it consists of.

    The descriptions in states of `on_matrices` are not among them (`origins`).
    """
    bare = lambda node: unboxed(node)[0] if is_state(node) else node
    state = jax.tree.map(bare, state, is_leaf=is_state)
    manifests, known = manifests_of(state), set(paths.values())
    nodes = dict(quantized_nodes(state))
    for leaf in known_leaves(state):
        keys = leaf.keys
        owners = [k for k in manifests if keys[: len(k)] == k]
        owner = max(owners, key=len, default=None)
        field = None if owner is None else key_name(keys[len(owner)])
        if field in ("method", "manifest", "sides"):
            yield leaf.value, []
            continue
        keys, packed = as_plain(keys, nodes)
        leaf = leaf._replace(keys=keys)
        if owner is None or field in ("after", "other"):
            yield leaf.value, [_like_a_parameter(leaf, packed, known)]
        else:
            yield leaf.value, _of_stack(leaf, packed, manifests[owner], paths)


def _like_a_parameter(leaf: Known, packed: Packed | None, known: set[str]) -> Entry:
    """The entry of a leaf that may have the path of a parameter, as Adam's have."""
    lead, path = _split(leaf.keys, known)
    if packed is not None:
        packed = packed._replace(moment=path_name(_split(packed.moment, known)[0]))
    return Entry(path_name(lead), path, None, packed, leaf)


def _of_stack(
    leaf: Known,
    packed: Packed | None,
    manifest: Mapping[str, np.ndarray],
    paths: Mapping[int, str],
) -> list[Entry]:
    """The entries of a leaf that may belong to the matrices of a stack."""
    place = lambda keys: path_name(
        tuple(k for k in keys if key_name(k) not in manifest)
    )
    here = place(leaf.keys)
    group = next((key_name(k) for k in leaf.keys if key_name(k) in manifest), None)
    if group is None:
        return [Entry(here, "", None, None, leaf)]
    if packed is not None:
        packed = packed._replace(moment=place(packed.moment))
    rows = rows_by_path(manifest[group], paths)
    is_scalar = jnp.ndim(leaf.value) == 0
    return [
        Entry(here, path, None if is_scalar else at, packed, leaf)
        for path, at in rows.items()
    ]


def _split(keys: tuple, known: set[str]) -> tuple[tuple, str]:
    """Keys in the state and parameter path of a leaf like a parameter."""
    for start in range(len(keys)):
        if (path := path_name(keys[start:])) in known:
            return keys[:start], path
    return keys, ""


def manifests_of(state: Any) -> dict[tuple, dict[str, np.ndarray]]:
    """The manifest of every state of `on_matrices`, by the keys of that state."""
    return {keys: manifest_of(node) for keys, node in states_in(state)}


def manifest_of(state: OnMatricesState) -> dict[str, np.ndarray]:
    """The manifest of a state of one run."""
    check_position(state)
    check_one_run(state)
    return {
        name: on_host(jax.tree.leaves(rows)[0]) for name, rows in state.manifest.items()
    }


def check_values(tree: Any, what: str) -> None:
    """Raises if there is nothing to save or compare."""
    leaves = jax.tree.leaves(tree)
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
        raise ValueError(
            f"`{what}` must hold values, got traced arrays; call this outside of "
            "jax.jit, jax.vmap and other transformations."
        )
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
        raise ValueError(
            f"`{what}` must hold values, got shapes; pass arrays, such as those of "
            "tx.init(params)."
        )


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
