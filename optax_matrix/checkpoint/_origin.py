"""Which method a portable form belongs to, and which axes were rows and columns."""

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
from optax_matrix.tree.state import entry_of, states_in


@dataclasses.dataclass(frozen=True)
class Origin:
    """What one state of `on_matrices` says about itself.

    Attributes:
        place: The leading part of its keys in the portable form.
        method: Its method; empty if that has no name.
        forms: `groups.form_of` of each parameter path, or of the pieces of one.
    """

    place: str
    method: tuple[str, ...]
    forms: Mapping[str, np.ndarray]

    def entries(self) -> dict[str, Any]:
        """The portable form of it."""
        methods = {
            f"{self._methods}/{name}": np.asarray(number)
            for method in self.method
            for name, number in entry_of(method).items()
        }
        return {**methods, **{self._form(p).key: x for p, x in self.forms.items()}}

    def check(self, portable: Mapping[str, Any], moves: Moves) -> set[str]:
        """Raises if a portable form has another origin.

        It returns the keys that it read. What the portable form lacks is not compared.
        """
        before = Entry(self._methods, "").before(moves)
        if before is None:  # Something else was here.
            return set()
        lead = f"{before.key}/"
        found = {key for key in portable if key.startswith(lead)}
        if found and {key[len(lead) :] for key in found} != set(self.method):
            others = ", ".join(sorted(key[len(lead) :] for key in found))
            own = ", ".join(self.method) or "a method without a name"
            raise ValueError(
                f"`portable` must be a state of {own}, got one of {others}; to use it "
                f"all the same, leave out its entries {lead}..."
            )
        for path, form in self.forms.items():
            before = self._form(path).before(moves)
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

    @property
    def _methods(self) -> str:
        return f"{self.place}/method" if self.place else "method"

    def _form(self, path: str) -> Entry:
        return Entry(f"{self.place}/manifest" if self.place else "manifest", path)


def origins(state: Any, paths: Mapping[int, str]) -> Iterator[Origin]:
    """What each state of `on_matrices` within a state says about itself."""
    manifests = manifests_of(state)
    for keys, node in states_in(state):
        forms = {
            path: manifest[rows[0], 2:]
            for manifest in manifests[keys].values()
            for path, rows in rows_by_path(manifest, paths).items()
        }
        yield Origin(path_name(keys), tuple(node.method), forms)
