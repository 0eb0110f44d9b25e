"""Error messages of `from_portable`."""

from collections.abc import Mapping
from typing import Any

from optax_matrix.checkpoint._entries import Entry, Moves, is_in
from optax_matrix.tree.state import states_in

_VERSION = "or was written by another version of optax_matrix"


def check_params(params: Any, call: str) -> None:
    """Raises if a state was passed as the parameters."""
    if next(states_in(params), None):
        raise ValueError(f"`params` must be the parameters, got a state; write {call}.")


def check_flat(portable: Any) -> None:
    """Raises unless this is a dict of arrays."""
    nested = isinstance(portable, Mapping) and [
        key for key, x in portable.items() if isinstance(x, (Mapping, tuple, list))
    ]
    if not isinstance(portable, Mapping) or nested:
        got = f"a tree under {nested[0]!r}" if nested else type(portable).__name__
        raise ValueError(
            "`portable` must be what to_portable returns, a dict of arrays by name, "
            f"got {got}; write from_portable(portable, state, params)."
        )


def check_moves(
    moves: Moves,
    found: list[tuple[Entry, Entry, str]],
    portable: Mapping[str, Any],
    paths: Mapping[int, str],
) -> None:
    """Raises if a move has no source or no target.

    ``found`` has each entry of the state before and after the move, and its old key.
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


def missing_state(absent: list[str], portable: Mapping[str, Any]) -> str:
    """The message about entries that a portable form lacks."""
    first = f"/{absent[0]}"
    leads = [key.removesuffix(first) for key in portable if key.endswith(first)]
    for lead in leads:
        if all(f"{lead}/{key}" in portable for key in absent):
            return (
                f"`portable` has no state for {some(absent)}, but has it under "
                f"{lead!r}; pass places={{{lead!r}: ''}}."
            )
    return (
        f"`portable` has no state for {some(absent)}: it has other names, {_VERSION}; "
        "pass rename={old path: new path}, or missing='init' if that is meant."
    )


def unused_state(extra: list[str]) -> str:
    """The message about entries that a state has no place for."""
    return (
        f"`portable` holds state of no use, {some(extra)}: it has other names, "
        f"{_VERSION}; pass rename={{old path: new path}}, or unused='drop' if that is "
        "meant."
    )


def nothing_fits(absent: list[str], extra: list[str]) -> str:
    """The message if all state would be fresh, and all entries dropped."""
    return (
        f"`portable` must hold some of what `state` keeps, but has {some(extra)} in "
        f"place of {some(absent)}: it has other names, {_VERSION}; pass places= or "
        "rename=, or take tx.init(params) to start afresh."
    )


def some(keys: list[str]) -> str:
    """The first of some keys, and how many more there are."""
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if keys[4:] else "")
