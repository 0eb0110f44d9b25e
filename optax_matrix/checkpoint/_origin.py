"""The method of a portable form, and the axes and sides of its arrays."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from optax_matrix._paths import path_name
from optax_matrix.checkpoint._entries import (
    Entry,
    Moves,
    manifests_of,
    rows_by_path,
)
from optax_matrix.checkpoint._packed import as_plain, quantized_nodes
from optax_matrix.tree.state import entry_of, sides_of, states_in


@dataclasses.dataclass(frozen=True)
class Origin:
    """The method, axes and sides of one state of `on_matrices`.

    Attributes:
        place: The leading part of its keys in the portable form.
        method: Its method; empty if that has no name.
        forms: `stacks.layout.form_of` of each parameter path, or of the pieces of one.
        sides: The sides that blocks work on, of those paths that have some.
    """

    place: str
    method: tuple[str, ...]
    forms: Mapping[str, np.ndarray]
    sides: Mapping[str, str]

    def entries(self) -> dict[str, Any]:
        """The portable form of it."""
        named = [(self._at("method", name), name) for name in self.method]
        named += [(self._at(f"sides/{x}", p), x) for p, x in self.sides.items()]
        forms = {self._at("manifest", path).key: x for path, x in self.forms.items()}
        return {at.key: np.asarray(entry_of(x)[x]) for at, x in named} | forms

    def check(self, portable: Mapping[str, Any], moves: Moves) -> set[str]:
        """Raises if a portable form has another origin.

        It returns the keys that it read. Keys that the portable form lacks are not
        compared, nor are the sides if it has no method and this has one.
        """
        found = self._check_method(portable, moves)
        if found is None:  # This state is new at its place.
            return set()
        carried = bool(self.method) and not found  # To another method, on purpose.
        found |= self._check_forms(portable, moves)
        lead, known = self._sides_in(portable, moves)
        if carried:
            return found | {key for key, _ in known.values()}
        return found | self._check_sides(lead, known, moves)

    def _check_forms(self, portable: Mapping[str, Any], moves: Moves) -> set[str]:
        found = set[str]()
        for path, form in self.forms.items():
            before = self._at("manifest", path).before(moves)
            if before is None or before.key not in portable:
                continue
            found.add(before.key)
            shape, axes = np.asarray(portable[before.key]).tolist()
            if shape == form[0] and axes != form[1]:
                raise ValueError(
                    "`portable` must hold state of the same matrices, but its rows "
                    f"and columns are other axes of {path!r} than in `state`; restore "
                    "the `dimension_numbers`, or, if the parameter itself was turned, "
                    f"leave out the entry {before.key}."
                )
        return found

    def _check_method(
        self, portable: Mapping[str, Any], moves: Moves
    ) -> set[str] | None:
        before = self._at("method", "").before(moves)
        if before is None:
            return None
        lead = f"{before.key}/"
        found = {key for key in portable if key.startswith(lead)}
        if found and {key[len(lead) :] for key in found} != set(self.method):
            others = ", ".join(sorted(key[len(lead) :] for key in found))
            own = ", ".join(self.method) or "a method without a name"
            raise ValueError(
                f"`portable` must be a state of {own}, got one of {others}; to use it "
                f"all the same, leave out its entries {lead}..."
            )
        return found

    def _check_sides(self, lead: str, known: dict, moves: Moves) -> set[str]:
        found = set[str]()
        for path, side in self.sides.items():
            before = self._at("sides", path).before(moves)
            if before is None or before.path not in known:
                continue
            key, other = known[before.path]
            if other != side:
                raise ValueError(
                    "`portable` must hold state of the same sides, but that of "
                    f"{path!r} is of side {other!r}, and `state` is of {side!r}; "
                    "restore `side` or `orientation`, or, if you turned the arrays "
                    f"yourself, leave out the entries {lead}..."
                )
            found.add(key)
        return found

    def _sides_in(self, portable: Mapping[str, Any], moves: Moves) -> tuple[str, dict]:
        """The lead of the keys under ``sides``, and key and side of each old path."""
        before, known = self._at("sides", "").before(moves), {}
        lead = "" if before is None else f"{before.key}/"
        for key in portable:
            if lead and key.startswith(lead):
                side, _, path = key.removeprefix(lead).partition("/")
                known[path] = key, side
        return lead, known

    def _at(self, field: str, path: str) -> Entry:
        return Entry(f"{self.place}/{field}" if self.place else field, path)


def origins(state: Any, paths: Mapping[int, str]) -> Iterator[Origin]:
    """The origin of each state of `on_matrices` within a state."""
    manifests, nodes = manifests_of(state), dict(quantized_nodes(state))
    for keys, node in states_in(state):
        forms, sides, held = {}, {}, sides_of(node)
        for group, manifest in manifests[keys].items():
            for path, rows in rows_by_path(manifest, paths).items():
                forms[path] = manifest[rows[0], 2:]
                if group in held:
                    sides[path] = held[group]
        place = path_name(as_plain(keys, nodes)[0])
        yield Origin(place, tuple(node.method), forms, sides)
