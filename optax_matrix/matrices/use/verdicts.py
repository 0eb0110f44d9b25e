"""What each parameter is, from all of its uses."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from optax_matrix.matrices.use.primitives import RANKING
from optax_matrix.matrices.use.sides import Sides, numbers_of, sides_of
from optax_matrix.matrices.use.trace import Trace
from optax_matrix.matrices.use.uses import INDEXED, Use
from optax_matrix.matrices.use.views import Value
from optax_matrix.matrices.view import MatrixDimensionNumbers, make_view

# The name of an array in a layer, whose number is no number of a block.
_OWN_NAME = re.compile("kernel|weight|w|value|embedding", re.IGNORECASE)

_VALUES = {"sorted values", "top values"}

Kind = Literal[
    "matrix", "table", "filter", "vector", "router", "last layer", "not used", "unclear"
]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What one parameter is.

    Attributes:
        path: Its path.
        shape: Its shape.
        use: How it is used.
        kind: What it is, in a word.
        reason: Why, or what does not tell.
        numbers: The dimension numbers of a matrix; of a table or a last layer those
            that it would have as one; None for anything else.
        heads: The number of heads into which attention divides its outputs, if so.
    """

    path: str
    shape: tuple[int, ...]
    use: str
    kind: Kind
    reason: str = ""
    numbers: MatrixDimensionNumbers | None = None
    heads: int | None = None


def verdicts(trace: Trace, outs: Iterable[Value]) -> tuple[Verdict, ...]:
    """A verdict on each parameter; ``outs`` are the results of the function."""
    ends = _Ends(trace, outs)
    streams = trace.signals.in_streams()
    uses: dict[int, list[tuple[int, Use]]] = defaultdict(list)
    for number, use in enumerate(trace.uses):
        uses[use.leaf].append((number, use))
    return tuple(
        _Judge(trace, ends, streams, i, path, shape, uses[i]).verdict()
        for i, (path, shape) in enumerate(trace.leaves)
    )


class _Ends:
    """Which uses no product of another parameter follows."""

    def __init__(self, trace: Trace, outs: Iterable[Value]):
        reached = 0
        for value in outs:
            reached |= value.before
        # A result that is never used is one of derivatives.
        self.is_last = {
            number: not trace.after >> number & 1
            for number, use in enumerate(trace.uses)
            if use.is_product and reached >> number & 1
        }
        self._inner = {
            self._form(trace, use.leaf)
            for number, use in enumerate(trace.uses)
            if self.is_last.get(number) is False
        }

    def has_twin_inside(self, trace: Trace, leaf: int) -> bool:
        """Whether the same layer of another block is not the last: a backbone."""
        return self._form(trace, leaf) in self._inner

    @staticmethod
    def _form(trace: Trace, leaf: int):
        path, shape = trace.leaves[leaf]
        *blocks, name = path.split("/")
        own = [blocks.pop()] if blocks and _OWN_NAME.fullmatch(name) else []
        return re.sub(r"\d+", "#", "/".join(blocks)), (*own, name), shape


@dataclasses.dataclass
class _Judge:
    trace: Trace
    ends: _Ends
    streams: set[int]
    leaf: int
    path: str
    shape: tuple[int, ...]
    uses: Sequence[tuple[int, Use]]

    def verdict(self) -> Verdict:
        products = [(n, use) for n, use in self.uses if use.is_product]
        if sum(n > 1 for n in self.shape) < 2:
            return self._is("vector", "", self._said_of_others())
        return self._of_products(products) if products else self._of_others()

    def _is(self, kind: Kind, reason: str, said: str, **more) -> Verdict:
        return Verdict(self.path, self.shape, said, kind, reason, **more)

    def _lost(self) -> list[str]:
        return list(self.trace.unclear.get(self.leaf, ()))

    def _said_of_others(self) -> str:
        word = lambda use: use.kind + (f" ({use.detail})" if use.detail else "")
        return "; ".join(dict.fromkeys(word(use) for _, use in self.uses)) or "none"

    def _of_others(self) -> Verdict:
        said, kinds = self._said_of_others(), {use.kind for _, use in self.uses}
        if lost := self._lost():
            return self._is("unclear", lost[0], said)
        if "lookup" in kinds:
            numbers = self._numbers_of_table()
            return self._is("table", "rows are looked up", said, numbers=numbers)
        if doubt := self.trace.doubts.get(self.leaf):
            return self._is("unclear", doubt, said)
        if kinds & {"elementwise", "table"}:
            return self._is("vector", "used entry by entry", said)
        return self._is("not used", "not used with data", said)

    def _numbers_of_table(self) -> MatrixDimensionNumbers | None:
        """Indices are inputs, what is looked up is outputs."""
        use = next(use for _, use in self.uses if use.kind == "lookup")
        sides = sides_of(use, self.shape)
        if isinstance(sides, str) or not all(_pair(sides)):
            return None
        return numbers_of(sides, [use], self.shape, self.streams)

    def _of_products(self, products: list[tuple[int, Use]]) -> Verdict:
        seen = [(n, use, sides_of(use, self.shape)) for n, use in products]
        said = "; ".join(dict.fromkeys(_said(use, sides) for _, use, sides in seen))
        is_table = any(use.kind == "lookup" for _, use in self.uses)
        if is_table and any(use.detail != INDEXED for _, use in products):
            numbers, said = self._numbers_of_table(), f"lookup; {said}"
            return self._is("table", "tied to a product", said, numbers=numbers)
        if any(use.detail == "of one channel each" for _, use in products):
            return self._is("filter", "one channel each", said)
        good = [
            (n, use, sides)
            for n, use, sides in seen
            if isinstance(sides, Sides) and sides.axes("in") and sides.axes("out")
        ]
        lost = self._lost() + [x for *_, x in seen if isinstance(x, str)]
        forward = [(n, use, sides) for n, use, sides in good if not use.is_derivative]
        good = forward or good
        if not good:
            lost += [d for d in [self.trace.doubts.get(self.leaf)] if d]
            if lost:
                return self._is("unclear", lost[0], said)
            return self._is("vector", "one side only", said)
        both = {frozenset(map(frozenset, _pair(sides))) for *_, sides in good}
        if len(both) > 1:
            return self._is("unclear", "two products with other axes", said)
        told = (x for _, use, x in seen if not use.is_derivative)
        if unlike := [x for x in told if isinstance(x, str)]:
            return self._is("unclear", unlike[0], said)
        if _are_opposed(good):
            return self._is("unclear", "products in both directions", said)
        return self._of_sides(good, said)

    def _of_sides(self, good: list[tuple[int, Use, Sides]], said: str) -> Verdict:
        sides = good[0][2]
        alike = [use for _, use, found in good if found == sides]
        numbers = numbers_of(sides, alike, self.shape, self.streams)
        heads = {count for use in alike for count in use.heads}
        view = make_view(self.shape, numbers, self.path)
        if min(view.rows, view.cols) < 2:
            return self._is("vector", "a side of length one", said)
        if lost := self._lost():
            return self._is("unclear", lost[0], said)
        selected = {way for use in alike for way in use.selected}
        is_inner_product = "contracted" in selected and "scores" not in selected
        if is_inner_product and len(sides.axes("out")) > 1 and not heads:
            return self._is("unclear", "bilinear in two inputs", said)
        ends = [self.ends.is_last[n] for n, *_ in good if n in self.ends.is_last]
        if ends and all(ends) and not self.ends.has_twin_inside(self.trace, self.leaf):
            if len({_pair(sides) for *_, sides in good}) > 1:
                return self._is("unclear", "a last layer in both directions", said)
            said_last = "last layer", "nothing learned comes after"
            return self._is(*said_last, said, numbers=numbers)
        is_derived = any(use.is_derivative for _, use in self.uses)
        is_derived |= self.leaf in self.trace.doubts
        if is_derived and not ends:
            return self._is("unclear", "only its derivative reaches the results", said)
        if any(ends) and not all(ends) and not is_derived:
            return self._is("unclear", "a last layer that is used before, too", said)
        if found := _routing(selected, any(ends)):
            return self._is(*found, said)
        one = heads.pop() if len(heads) == 1 else None
        return self._is("matrix", "", said, numbers=numbers, heads=one)


def _are_opposed(good: list[tuple[int, Use, Sides]]) -> bool:
    """Whether products in two directions are neither a derivative nor a tie.

    Those follow a product in the first direction, whose results they depend on.
    """
    first = _pair(good[0][2])
    forward = sum(1 << n for n, _, sides in good if _pair(sides) == first)
    turned = (use for _, use, sides in good if _pair(sides) != first)
    return any(not use.before & forward for use in turned)


def _pair(sides: Sides) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sides.axes("in"), sides.axes("out")


def _routing(selected: set[str], is_end: bool) -> tuple[Kind, str] | None:
    """Whether outputs are ranked, as those of a router."""
    ranking = selected & (RANKING | _VALUES)
    if "another axis" in selected and not ranking:
        return "unclear", "sorted along another axis, a router?"
    if not ranking or is_end:
        return None
    if ranking <= _VALUES:
        return "unclear", "its outputs are ordered, a router?"
    if ranking <= _VALUES | {"reduce_max", "reduce_min"}:
        return "unclear", "softmax or maximum over all outputs, a router?"
    return "router", f"{'/'.join(sorted(ranking))} over its outputs"


def _said(use: Use, sides: Sides | str) -> str:
    if isinstance(sides, str):
        return use.kind
    shown = lambda side: "(" + ",".join(map(str, sides.axes(side))) + ")"
    batch = f", batch {shown('batch')}" if sides.axes("batch") else ""
    detail = f" {use.detail}" if use.detail else ""
    return f"{use.kind} {shown('in')} to {shown('out')}{batch}{detail}"
