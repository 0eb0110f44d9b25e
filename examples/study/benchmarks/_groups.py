"""Which devices send to one another, and along which mesh axes, by a program's text."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

_LISTS = re.compile(r" (?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r" replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r" replica_groups=mesh\[(?P<axes>[^\]]*)\]"
    r"(?:, device_ids=\(\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?\))?"
    r" \{(?P<along>[^}]*)\}"
)
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PART = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def axes_along(line: str, sizes: Mapping[str, int]) -> list[str]:
    """The mesh axes along which a collective sends.

    Args:
        line: The instruction, with its groups in any of the notations of XLA:
            ``{{0,1},{2,3}}``, ``[2,2]<=[4]``, or ``mesh['x'=2,'y'=2] {'y'}``.
        sizes: Size of each mesh axis, in the order of the mesh.

    Returns:
        The axes in which the places of two devices of a group differ.

    Raises:
        ValueError: If the groups are in another notation, or not of this mesh.
    """
    groups = groups_of(line, math.prod(sizes.values()))
    places = [np.unravel_index(group, tuple(sizes.values())) for group in groups]
    differ = lambda i: any((place[i] != place[i][0]).any() for place in places)
    return [axis for i, axis in enumerate(sizes) if differ(i)]


def groups_of(line: str, devices: int) -> list[np.ndarray]:
    """The numbers of the devices of each group of a collective.

    Args:
        line: As in `axes_along`.
        devices: Number of devices, all of which are one group if none are written.

    Returns:
        The groups.

    Raises:
        ValueError: If the groups are in another notation.
    """
    if found := _LISTS.search(line):
        lists = re.findall(r"\{([\d,]+)\}", found[1])
        return [np.array(_ints(x)) for x in lists] or [np.arange(devices)]
    if found := _IOTA.search(line):
        return list(_iota(found[2], found[3]).reshape(_ints(found[1])))
    if found := _MESH.search(line):
        sizes = {name: int(size) for name, size in _AXIS.findall(found["axes"])}
        count = math.prod(sizes.values())
        shape = found["shape"] or str(count)
        ids = _iota(shape, found["order"]).ravel()
        same = _without(sizes, _PART.findall(found["along"]))
        return [ids[same == x] for x in np.unique(same)]
    raise ValueError(f"`line` must have groups of devices, got {line.strip()[:300]!r}.")


def _without(sizes: Mapping[str, int], along: Sequence[tuple]) -> np.ndarray:
    """A number for each device, equal for those that differ along these axes alone.

    ``'x':(2)4`` is the part of size 4 of the axis x behind a part of size 2.
    """
    shape = tuple(sizes.values())
    places = dict(
        zip(sizes, np.unravel_index(np.arange(math.prod(shape)), shape), strict=True)
    )
    for name, before, part in along:
        size = int(part or sizes[name])
        after = sizes[name] // (int(before or 1) * size)
        places[name] = places[name] - places[name] // after % size * after
    return np.ravel_multi_index(tuple(places.values()), shape)


def _iota(shape: str, order: str | None) -> np.ndarray:
    numbers = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return numbers.transpose(_ints(order)) if order else numbers


def _ints(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]
