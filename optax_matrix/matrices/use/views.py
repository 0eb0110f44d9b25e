"""Where the axes of a parameter are in a value that is computed from it."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

FREE = -1  # In place of an axis: of no parameter. In place of a start: unknown.


class Part(NamedTuple):
    """Entries of one axis of a parameter: ``size`` of them, ``stride`` apart."""

    axis: int
    size: int
    stride: int = 1
    start: int = 0


Parts = tuple[Part, ...]


def free(size: int) -> Parts:
    """The parts of an axis that no parameter has."""
    return (Part(FREE, size),) if size != 1 else ()


def known(parts: Iterable[Part]) -> list[Part]:
    """Those parts that are of a parameter."""
    return [part for part in parts if part.axis != FREE]


def size_of(parts: Iterable[Part]) -> int:
    """The number of entries of an axis that consists of these parts."""
    return math.prod(part.size for part in parts)


@dataclasses.dataclass(frozen=True)
class View:
    """Where the axes of one parameter, or the outputs of one use, are in a value.

    Attributes:
        axes: For each axis of the value the parts that it consists of, the slowest
            first.
        summed: Parts that a product with a constant or another parameter has summed.
        indexed: Parts of which the value has one entry: layers of a scan, slices.
        layers: Those of ``indexed`` that a scan goes through.
        marks: ``broadcast``, ``nonlinear``, ``parameters`` (a product with another
            parameter), ``abs``, ``repeated`` (constant indices have taken more
            entries than there are), ``mixed`` (entries along an axis are mixed, as by a
            Fourier transform), ``noisy`` (times noise), ``spread``
            (noise that is added to a parameter), ``attended`` (data have been
            multiplied by other data since), ``?name`` (a primitive of that name has
            lost its axes).
    """

    axes: tuple[Parts, ...]
    summed: Parts = ()
    indexed: Parts = ()
    layers: Parts = ()
    marks: frozenset[str] = frozenset()

    def parts(self) -> list[Part]:
        """All parts of the parameter that the value has."""
        return known(part for axis in self.axes for part in axis)

    def at(self, dims: Iterable[int]) -> list[Part]:
        """The parts of the parameter in these axes of the value."""
        return known(part for d in dims for part in self.axes[d])

    def marked(self, *names: str) -> "View":
        """The same view with further marks."""
        return dataclasses.replace(self, marks=self.marks | set(names))

    def lost(self) -> str | None:
        """The name of the primitive that has lost the axes, if one has."""
        return next((mark[1:] for mark in self.marks if mark.startswith("?")), None)

    def over(self, axes: Iterable[Parts], more: Iterable[Part] = ()) -> "View":
        """The same with other axes; ``more`` parts are indexed from here on."""
        indexed = (*self.indexed, *more)
        return dataclasses.replace(self, axes=tuple(axes), indexed=indexed)


def along(dims: Iterable[int], shape: Sequence[int]) -> View:
    """The view in which these axes of a value are known, and no others."""
    dims = set(dims)
    sizes = enumerate(shape)
    return View(
        tuple((Part(d, n),) if d in dims and n > 1 else free(n) for d, n in sizes)
    )


def empty(shape: Sequence[int]) -> list[Parts]:
    """Axes in which nothing is known."""
    return [free(n) for n in shape]


def widened(view: View, old: Sequence[int], new: Sequence[int]) -> View:
    """The view of an operand that a primitive broadcasts by itself."""
    if len(old) != len(new):
        return view.over(empty(new))
    pairs = zip(view.axes, old, new, strict=True)
    return view.over(axis if n == m else free(m) for axis, n, m in pairs)


def richer(a: View | None, b: View) -> View:
    """Of two views of one parameter the one that has more of it."""
    if a is None:
        return b
    size = lambda view: (size_of(view.parts()), not view.summed)
    best = a if size(a) >= size(b) else b
    both = a.marks | b.marks
    return best.marked(*(m for m in both if m == "broadcast" or m.startswith("?")))


def reshaped(view: View, old: Sequence[int], new: Sequence[int]) -> View | None:
    """The view after a reshape; None if an axis cannot be followed."""
    if 0 in old:
        return None
    ones = known(
        p for axis, n in zip(view.axes, old, strict=True) if n == 1 for p in axis
    )
    axes: list[Parts] = [() for _ in new]
    for before, after in _blocks(old, new):
        parts = [part for d in before for part in view.axes[d]]
        sizes = [new[d] for d in after]
        placed = _dealt(parts, sizes)
        if placed is None:
            return None
        for d, found in zip(after, placed, strict=True):
            axes[d] = found
    return view.over(axes, ones)


def _blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list, list]]:
    """Runs of axes, of length above one, that have equally many entries."""
    before = [d for d, n in enumerate(old) if n != 1]
    after = [d for d, n in enumerate(new) if n != 1]
    blocks = []
    while before or after:
        a, b = [before.pop(0)], [after.pop(0)]
        while True:
            have, need = (math.prod(s[d] for d in x) for s, x in ((old, a), (new, b)))
            if have == need:
                break
            a.append(before.pop(0)) if have < need else b.append(after.pop(0))
        blocks.append((a, b))
    return blocks


def _dealt(parts: list[Part], sizes: list[int]) -> list[Parts] | None:
    """The parts of one run of axes, dealt to axes of these sizes."""
    if len(sizes) == 1 and size_of(parts) == sizes[0]:
        return [joined(parts)]
    if not known(parts):
        return [free(n) for n in sizes]
    if size_of(parts) != math.prod(sizes):
        return None
    left, out = list(parts), []
    for size in reversed(sizes):
        found = _taken(left, size)
        if found is None:
            return None
        out.insert(0, joined(found))
    return out


def _taken(left: list[Part], size: int) -> list[Part] | None:
    """Takes the fastest ``size`` entries off the end of the parts."""
    taken: list[Part] = []
    while size > 1:
        part = left.pop()
        if size % part.size == 0:
            taken.insert(0, part)
            size //= part.size
            continue
        step = part.stride * size
        if part.size % size or (part.axis != FREE and part.start % step):
            return None
        taken.insert(0, Part(part.axis, size, part.stride))
        left.append(Part(part.axis, part.size // size, step, part.start))
        size = 1
    return taken


def joined(parts: Iterable[Part]) -> Parts:
    """Neighbours that are one part of an axis again."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else Part(FREE, 1)
        is_same = last.axis == part.axis != FREE and not part.start
        if is_same and last.stride == part.size * part.stride:
            size = last.size * part.size
            out[-1] = Part(part.axis, size, part.stride, last.start)
        else:
            out.append(part)
    return tuple(out)


@dataclasses.dataclass
class Value:
    """What is known of a value.

    Attributes:
        shape: Its shape.
        is_data: Whether it depends on inputs, or is the result of a product with them.
        views: The views in it, by what they are of (`Leaf`, `Output`, `Rows`, `Hot`,
            `Met`, `Scaled`).
        before: The uses that it depends on, as bits.
        ranks: Those of them on an order or a maximum of whose outputs it depends.
        marks: Of data ``normed``, ``carry``, ``gate`` (after an exponential or a
            sigmoid) and ``outer`` (a gate times other data, nothing summed). Of
            constants ``iota``, ``eye``, ``zero`` and ``noise`` (drawn by a random key).
        still: Axes along which it is a broadcast.
        signal: The signal that it is, up to norms and maps by entry; None for another.
        read: The signals that products have read on the way to it, as bits.
    """

    shape: tuple[int, ...]
    is_data: bool = False
    views: dict[Any, View] = dataclasses.field(default_factory=dict)
    before: int = 0
    ranks: int = 0
    marks: frozenset[str] = frozenset()
    still: frozenset[int] = frozenset()
    signal: int | None = None
    read: int = 0

    @property
    def is_weight(self) -> bool:
        """Whether it is computed from parameters alone."""
        return bool(self.views) and not self.is_data

    def of(self, kind: type) -> list[tuple[Any, View]]:
        """The views of one kind, with what they are of."""
        return [(k, v) for k, v in self.views.items() if isinstance(k, kind)]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Key of a view: a parameter."""

    number: int


@dataclasses.dataclass(frozen=True)
class Output:
    """Key of a view: what a use has put out."""

    use: int


@dataclasses.dataclass(frozen=True)
class Rows:
    """Key of a view: rows of a parameter that indices have chosen."""

    leaf: int


@dataclasses.dataclass(frozen=True)
class Hot:
    """Key of a view: its parts are the axes along which data are one-hot."""


@dataclasses.dataclass(frozen=True)
class Met:
    """Key of a view: a parameter that data have met entry by entry.

    Attributes:
        leaf: The parameter.
        how: ``sum``; ``start`` as the first carry of a loop; ``broadcast`` if the data
            are one along an axis of the parameter; ``scale`` for anything else.
    """

    leaf: int
    how: str


@dataclasses.dataclass(frozen=True)
class Scaled:
    """Key of a view: data times a parameter, entry by entry, before a sum.

    Attributes:
        of: The key of the parameter or output: `Leaf`, `Rows`, `Met`, `Output`.
        still: The axes along which the data are a broadcast.
    """

    of: Any
    still: tuple[int, ...]
