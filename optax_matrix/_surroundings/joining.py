"""Stacks that a block computes together because it sees them in the same shape.

A block that turns the side it works on to the rows sees ``(m, n)`` and ``(n, m)`` in
the same shape. As one stack they need half of the program, and half of the time to
compile it. `owners` allows that, where each device has whole matrices. Elsewhere the
partitioner decides where arrays lie, and stacks of different shardings stay apart.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._surroundings import here
from optax_matrix._surroundings.observation import is_observed

_JOINED = " + "  # Between the names of joined stacks.


def largest_batch(x: jax.Array) -> int | None:
    """The largest number of these matrices in a stack; None if nothing limits it."""
    limit = here().limit
    return None if limit is None or x.ndim != 3 else limit(*x.shape[1:])


class _Different(Exception):
    """Joined stacks need different static values."""


def of_stack(values: Mapping[str, Any], name: str) -> Any:
    """What a block was given for a stack by name, also where several are joined.

    Args:
        values: Arrays with the matrices in front, or static values, by name.
        name: Name of the stack.

    Returns:
        The value. For a joined stack that of all its parts; where static values differ,
        `jointly` goes back to computing the parts by themselves.

    Raises:
        KeyError: If there is no value.
    """
    if name in values or _JOINED not in name:
        return values[name]
    found = [values[part] for part in name.split(_JOINED)]
    if all(hasattr(x, "shape") for x in found):
        return jnp.concatenate(found)
    if any(x != found[0] for x in found):
        raise _Different
    return found[0]


def jointly(
    f: Callable, stacks: Any, kinds: Any, *args: Any, limited: bool = True
) -> Any:
    """Applies a function to stacks, those of equal shape and kind as one.

    Args:
        f: Function of `stacks`, `kinds` and `args` that treats every matrix of a stack
            independently. It returns a tree in which dicts have values for each stack.
        stacks: ``{name: (batch, m, n)}``; `f` runs as it is on any other tree.
        kinds: Per stack what else must be equal; hashable.
        *args: Trees in which dicts with exactly these names have values per matrix.
        limited: Whether the limit of a stack holds for joined ones; otherwise `f` keeps
            memory bounded by itself.

    Returns:
        The value of `f`, by the names of `stacks`.
    """
    classes = _classes(stacks, kinds, limited)
    if classes is None or not all(classes.cover(x) for x in args):
        return f(stacks, kinds, *args)
    try:
        out = f(*(classes.joined(x) for x in (stacks, kinds, *args)))
    except _Different:
        return f(stacks, kinds, *args)
    except KeyError as error:  # A user's function looks stacks up by their names.
        if error.args[:1] and error.args[0] in classes.members:
            return f(stacks, kinds, *args)
        raise
    return classes.apart(out)


@dataclasses.dataclass(frozen=True)
class _Classes:
    """Which stacks are joined, and how many matrices each of them has.

    Attributes:
        members: The names of the stacks that are one, by the name of that one.
        counts: The number of matrices of each stack.
    """

    members: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int]

    def cover(self, tree: Any) -> bool:
        """Whether all that is named after a stack has its matrices in front."""
        fits = []

        def check(stacks: Any) -> None:
            for name, values in stacks.items():
                shapes = map(jnp.shape, jax.tree.leaves(values))
                fits.append(all(s[:1] == (self.counts[name],) for s in shapes))

        rest = jax.tree.leaves_with_path(_on_dicts(check, tree, self.counts))
        keys = {getattr(key, "key", None) for keys, _ in rest for key in keys}
        return all(fits) and keys.isdisjoint(self.counts)

    def joined(self, tree: Any) -> Any:
        def one(*xs: Any) -> Any:
            return jnp.concatenate(xs) if hasattr(xs[0], "shape") else xs[0]

        def join(stacks: Any) -> Any:
            parts = {c: [stacks[n] for n in names] for c, names in self.members.items()}
            return {c: jax.tree.map(one, *xs) for c, xs in parts.items()}

        return _on_dicts(join, tree, self.counts)

    def apart(self, tree: Any) -> Any:
        def split(stacks: Any) -> Any:
            found = {}
            for name, members in self.members.items():
                start = 0
                for member in members:
                    own = slice(start, start := start + self.counts[member])
                    part = lambda x, own=own: x[own]
                    found[member] = jax.tree.map(part, stacks[name])
            return {name: found[name] for name in self.counts}

        return _on_dicts(split, tree, self.members)


def _classes(stacks: Any, kinds: Any, limited: bool) -> _Classes | None:
    """How to join these stacks; None if there is nothing to join."""
    if here().limit is None or is_observed() or not isinstance(stacks, dict):
        return None
    open_: dict[Hashable, list[str]] = {}
    members: list[list[str]] = []
    for name, x in stacks.items():
        if x.ndim != 3:
            return None
        key, most = (x.shape[1:], x.dtype, kinds[name]), largest_batch(x)
        count = len(x) + sum(len(stacks[n]) for n in open_.get(key, ()))
        if key not in open_ or (limited and most is not None and count > most):
            members.append([])
            open_[key] = members[-1]
        open_[key].append(name)
    if len(members) == len(stacks):
        return None
    by_name = {_JOINED.join(names): tuple(names) for names in members}
    return _Classes(by_name, {name: len(x) for name, x in stacks.items()})


def _on_dicts(f: Callable, tree: Any, names: Mapping[str, Any]) -> Any:
    """Applies a function to every dict with exactly these keys."""
    known = lambda x: isinstance(x, dict) and x.keys() == names.keys()
    return jax.tree.map(lambda x: f(x) if known(x) else x, tree, is_leaf=known)
