"""Following the axes of parameters through a jaxpr to where they are used."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from optax_matrix.matrices.use.constants import of_array, of_constants
from optax_matrix.matrices.use.signals import Signals
from optax_matrix.matrices.use.uses import ORDERS, Use
from optax_matrix.matrices.use.views import Hot, Leaf, Part, Value, View, free

# How each primitive is followed, by name: functions of the trace, the equation, its
# operands and the shapes of its results. The modules beside this one fill it.
RULES: dict[str, Callable[..., list[Value]]] = {}


def follows(*names: str) -> Callable[[Any], Any]:
    """Registers a function for primitives of these names."""

    def register(rule: Any) -> Any:
        RULES.update((name, rule) for name in names)
        return rule

    return register


class Trace:
    """All uses of the parameters of a function, found by going through its jaxpr.

    Attributes:
        leaves: Pairs of path and shape.
        uses: The uses, in the order in which they are met. A bit of an integer stands
            for each.
        unclear: By parameter the reasons why a use could not be followed.
        doubts: By parameter what stands against a use, unless there is a product.
        after: Bits of the uses whose results reach another product of a parameter.
        signals: What products read and put out.
    """

    def __init__(self, leaves: list[tuple[str, tuple[int, ...]]]):
        self.leaves = leaves
        self.uses: list[Use] = []
        self.unclear: dict[int, dict[str, None]] = defaultdict(dict)
        self.doubts: dict[int, str] = {}
        self.after = 0
        self.signals = Signals()
        self._by_leaf: dict[int, list[Use]] = defaultdict(list)
        self._chosen = 0  # Bits of uses of which all orders are known to choose.
        self._numbers: dict[Any, int] = {}
        self._stack: tuple[int, ...] = ()
        self._unrecorded = 0
        self._is_backward = False

    @property
    def records(self) -> bool:
        """Whether uses are recorded: not before the carry of a loop is settled."""
        return not self._unrecorded

    def use(
        self, eqn: Any, leaf: int, kind: str, view: View, x: Value | None = None, **more
    ) -> int | None:
        """Records a use and returns its number; None while nothing is recorded.

        With ``x``, the data of a product, what comes before x has a product after it.
        """
        if not self.records:
            return None
        key = self._stack, id(eqn), leaf, kind
        if key not in self._numbers:
            self._numbers[key] = len(self.uses)
            is_derivative = self._is_backward or _is_backward(eqn)
            more = {"layers": view.layers, "is_derivative": is_derivative, **more}
            self.uses.append(Use(leaf, kind, **more))
            self._by_leaf[leaf].append(self.uses[-1])
        number = self._numbers[key]
        use = self.uses[number]
        if x is not None:
            use.before |= x.before & ~(1 << number)
        if x is not None and not self._is_turned(use):
            self.after |= use.before
        return number

    def uses_of(self, leaf: int) -> list[Use]:
        """The uses of one parameter."""
        return self._by_leaf[leaf]

    def _is_turned(self, use: Use) -> bool:
        """Whether an earlier use has inputs and outputs exchanged.

        Then this one is of a derivative, or ties an encoder to its decoder; it does not
        tell what comes after.
        """
        into, out = use.sides()
        others = (u for u in self.uses_of(use.leaf) if u.is_product)
        return any(into == u.sides()[1] != out for u in others if u is not use)

    def rank(self, number: int, ways: set[str]) -> None:
        """Notes that the outputs of a use are ordered."""
        self.uses[number].ranked |= ways
        self._chosen &= ~(1 << number)

    def choose(self, ins: Sequence[Value], *, by_index: bool = False) -> None:
        """Notes that orders and maxima choose among other data, or scale them.

        An order of hidden units that only changes these, before the next layer, does
        not choose.
        """
        if not self.records or not any(v.ranks & ~self._chosen for v in ins):
            return
        data = [v for v in ins if v.is_data]
        for v in data:
            others = [w for w in data if w is not v]
            is_gate = by_index or v.of(Hot) or any(w.before & ~v.before for w in others)
            has_partner = len(data) > 1 or any(w.views for w in ins if w is not v)
            for number in bits(v.ranks & ~self._chosen) if has_partner else ():
                use = self.uses[number]
                use.selected |= use.ranked - (set() if is_gate else ORDERS)
                self._chosen |= (use.ranked <= use.selected) << number

    def lose(self, leaf: int, reason: str) -> None:
        """Notes that a parameter could not be followed."""
        if self.records:
            self.unclear[leaf][reason] = None

    def doubt(self, leaf: int, reason: str) -> None:
        """Notes what a use does not tell, and what counts if no other tells it."""
        if self.records:
            self.doubts.setdefault(leaf, reason)

    def lose_all(self, value: Value, reason: str) -> None:
        """Notes this of all parameters in a value."""
        for key, view in value.of(Leaf):
            if view.parts():
                self.lose(key.number, reason)

    def run(self, jaxpr: Any, args: Iterable[Value]) -> list[Value]:
        """The results of a jaxpr; constants that it closes over are not data."""
        known: dict[Any, Value] = {}
        jaxpr, constants = opened(jaxpr)

        def read(v):
            return of_array(v.val) if hasattr(v, "val") else known[v]

        known.update(zip(jaxpr.invars, args, strict=True))
        closed = map(of_array, constants)
        known.update(zip(jaxpr.constvars, closed, strict=True))
        for eqn in jaxpr.eqns:
            shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
            ins = [self._with_root(read(v)) for v in eqn.invars]
            outs = self._equation(eqn, ins, shapes)
            known.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _with_root(self, value: Value) -> Value:
        signal = value.signal
        if signal is None or self.signals.root(signal) == signal:
            return value
        return dataclasses.replace(value, signal=self.signals.root(signal))

    def puts_out(
        self,
        number: int | None,
        out: Value,
        x: Value | None = None,
        *,
        beside: bool = False,
    ) -> None:
        """Notes that a value is what a use puts out, after it has read data.

        With ``beside``, another use of the same product puts out the same.
        """
        if not beside:
            out.signal = self.signals.new()
        if x is not None and x.signal is not None:
            out.read |= 1 << x.signal
        if number is not None:
            out.before |= 1 << number
            self.uses[number].writes = out.signal
            self.uses[number].reads = None if x is None else x.signal

    def call(self, eqn: Any, jaxpr: Any, args: Iterable[Value]) -> list[Value]:
        """The results of a jaxpr inside of an equation."""
        outer = self._stack, self._is_backward
        self._stack = (*self._stack, id(eqn), id(jaxpr))
        self._is_backward |= _is_backward(eqn)
        outs = self.run(jaxpr, args)
        self._stack, self._is_backward = outer
        return outs

    def unrecorded(self, run: Callable[[], list[Value]]) -> list[Value]:
        """The results of a function, without the uses in it."""
        self._unrecorded += 1
        outs = run()
        self._unrecorded -= 1
        return outs

    def _equation(self, eqn, ins: list[Value], shapes: list[tuple[int, ...]]):
        name = eqn.primitive.name
        inner, is_constant = _inner(eqn), not any(v.views or v.is_data for v in ins)
        if is_constant and (inner is None or name in RULES):
            return of_constants(name, ins, shapes)
        if name in RULES:
            return RULES[name](self, eqn, ins, shapes)
        if inner is not None and len(opened(inner)[0].invars) == len(ins):
            return self.call(eqn, inner, ins)
        if is_constant:
            return of_constants(name, ins, shapes)
        if not shapes:  # A callback.
            return []
        if not any(v.is_data for v in ins):
            return [self._unknown(name, ins, shape) for shape in shapes]
        for value in ins:
            self.lose_all(value, name)
        return [mixed(ins, shape) for shape in shapes]

    def _unknown(self, name: str, ins: list[Value], shape: tuple[int, ...]) -> Value:
        """What an unknown primitive gives of parameters: it may never meet data."""
        keys = [key for value in ins for key, _ in value.of(Leaf)]
        view = View(tuple(free(n) for n in shape)).marked("?" + name)
        return Value(shape, views=dict.fromkeys(keys, view) if shape else {})

    def mapped(
        self, value: Value, shape: tuple[int, ...], f: Callable[[View], View | None]
    ) -> Value:
        """A value of one operand whose views ``f`` changes; None loses them."""
        views = {}
        for key, view in value.views.items():
            new = f(view)
            if new is not None:
                views[key] = new
            elif isinstance(key, Leaf) and view.parts():
                self.lose(key.number, "reshape")
        is_data = value.is_data or (value.is_weight and not views)
        marks = value.marks - {"flat"} if is_data else value.marks
        new = Value(shape, is_data, views, value.before, value.ranks, marks)
        return dataclasses.replace(new, signal=value.signal, read=value.read)


def mixed(ins: Iterable[Value], shape: tuple[int, ...]) -> Value:
    """A value that depends on all of these, in which no axis is known.

    It is the signal of those that are one, where these agree.
    """
    before, marks, is_data = 0, set(), False
    signals, read, ranks = set(), 0, 0
    for v in ins:
        before |= v.before
        ranks |= v.ranks
        read |= v.read
        signals |= {v.signal} - {None}
        marks |= v.marks & {"carry"}
        is_data |= v.is_data or bool(v.views)
    signal = signals.pop() if len(signals) == 1 else None
    new = Value(shape, is_data, {}, before, marks=frozenset(marks))
    return dataclasses.replace(new, signal=signal, read=read, ranks=ranks)


def _inner(eqn: Any) -> Any:
    """The jaxpr that an equation calls, of whatever primitive."""
    names = "jaxpr", "call_jaxpr", "fun_jaxpr", "call"
    found = (eqn.params[name] for name in names if name in eqn.params)
    return None if eqn.primitive.name == "pallas_call" else next(found, None)


def _is_backward(eqn: Any) -> bool:
    """Whether JAX says that it has made an equation by transposition."""
    return "transpose(" in str(eqn.source_info.name_stack)


def bits(mask: int) -> Iterable[int]:
    """The numbers of the bits of an integer."""
    while mask:
        last = mask & -mask
        yield last.bit_length() - 1
        mask ^= last


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr, and the constants that it closes over, or their shapes."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    shapes = [v.aval for v in inner.constvars]
    return inner, getattr(jaxpr, "consts", shapes)


def of_parameter(shape: tuple[int, ...], number: int) -> Value:
    """The value of a parameter itself."""
    axes = [(Part(a, n),) if n != 1 else free(n) for a, n in enumerate(shape)]
    return Value(shape, views={Leaf(number): View(tuple(axes))})
