"""The batches of every seed: read once, since every rate trains on the same ones."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from optax_matrix._arguments import is_function


def read(batches: Any, steps: int | None, seeds: Sequence[int] | None) -> list[Any]:
    """A list of batches for each seed; one for all if they do not depend on it."""
    if not is_function(batches):
        return [_listed(batches, steps)]
    if seeds is None:
        raise ValueError(
            "`batches` must be batches unless `seeds` is given, got a function; pass "
            "seeds=(0,), or what the function returns."
        )
    found = [_listed(batches(seed), steps) for seed in seeds]
    if len({*map(len, found)}) > 1:
        raise ValueError(
            "`batches(seed)` must have as many batches for every seed, got "
            f"{[*map(len, found)]}; pass steps={min(map(len, found))}."
        )
    return found


def _listed(batches: Any, steps: int | None) -> list[Any]:
    if isinstance(batches, dict | tuple) or not hasattr(batches, "__iter__"):
        raise ValueError(
            "`batches` must be an array (steps, ...) or an iterable of batches, got "
            f"{type(batches).__name__}; of stacked arrays x and y pass "
            "list(zip(x, y)), and of one batch [batch] * 100."
        )
    if steps is None and not hasattr(batches, "__len__"):
        raise ValueError(
            f"`batches` of type {type(batches).__name__} has no length and may not "
            "end; pass steps=, the number of batches that every run trains on."
        )
    found = list(itertools.islice(batches, steps))
    if not found or (steps is not None and len(found) < steps):
        spent = isinstance(batches, Iterator) and not found
        way = "it was read before, so make it anew" if spent else "pass more, or steps="
        wanted = "one batch or more" if steps is None else f"{steps} batches"
        raise ValueError(f"`batches` must have {wanted}, got {len(found)}; {way}.")
    return found
