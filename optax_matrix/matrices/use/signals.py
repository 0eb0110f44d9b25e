"""Signals that layers read and write, and those that are a residual stream."""


class Signals:
    """What products put out and read, up to norms and other maps by entry.

    Where ``f(x)`` is added to x and f has read x, both are one signal from then on: a
    residual stream. A parameter that puts out what is added writes it.
    """

    def __init__(self):
        self._root: list[int] = []
        self._mask: list[int] = []  # Of a root: all signals that are one with it.
        self._terms: dict[int, list[int]] = {}
        self._factors: dict[int, list[tuple[int, int]]] = {}
        self._streams: set[int] = set()

    def new(self) -> int:
        """Another signal."""
        self._root.append(len(self._root))
        self._mask.append(1 << self._root[-1])
        return self._root[-1]

    def root(self, signal: int) -> int:
        """The number by which a signal and all that are one with it are known."""
        while self._root[signal] != signal:
            signal = self._root[signal]
        return signal

    def _has_read(self, read: int, signal: int) -> bool:
        return bool(read & self._mask[self.root(signal)])

    def add(self, x: tuple[int, int], y: tuple[int, int]) -> int:
        """The sum of two signals, each with the signals read on the way to it."""
        (a, read_by_a), (b, read_by_b) = x, y
        a, b = self.root(a), self.root(b)
        if a == b:
            return a
        if self._has_read(read_by_b, a):
            return self._written(a, b)
        if self._has_read(read_by_a, b):
            return self._written(b, a)
        total = self.new()
        self._terms[total] = [a, b]
        return total

    def times(self, x: tuple[int, int], y: tuple[int, int]) -> int:
        """The product of two signals by entry: a gate."""
        if self.root(x[0]) == self.root(y[0]):
            return self.root(x[0])
        product = self.new()
        self._factors[product] = [x, y]
        return product

    def _written(self, stream: int, added: int) -> int:
        self._streams.add(stream)
        factors = self._factors.get(added, ())
        self._terms[added] = [
            *self._terms.get(added, ()),
            *(factor for factor, read in factors if self._has_read(read, stream)),
        ]
        self._root[added] = stream
        self._mask[stream] |= self._mask[added]
        return stream

    def in_streams(self) -> set[int]:
        """All signals that are on a residual stream, or a term of what is."""
        roots = {self.root(signal) for signal in self._streams}
        found = {s for s in range(len(self._root)) if self.root(s) in roots}
        queue = list(found)
        while queue:
            for term in self._terms.get(queue.pop(), ()):
                if term not in found:
                    found.add(term)
                    queue.append(term)
        return found
