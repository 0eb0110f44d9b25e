"""Operations entry by entry, and along axes."""

from collections.abc import Sequence
from typing import Any

from optax_matrix.matrices.use.constants import of_constants
from optax_matrix.matrices.use.primitives import (
    ALONG_AN_AXIS,
    ELEMENTWISE,
    LINEAR,
    NONLINEAR,
    RANDOM,
)
from optax_matrix.matrices.use.trace import RULES, Trace, mixed
from optax_matrix.matrices.use.views import (
    Hot,
    Leaf,
    Met,
    Output,
    Rows,
    Scaled,
    Value,
    View,
    along,
    richer,
    widened,
)

_MOST_VIEWS = 12  # A residual stream would collect one of each layer.
_SUMS = "add", "add_any", "sub"


def elementwise(trace: Trace, eqn: Any, ins: list[Value], shapes: list) -> list[Value]:
    """An operation on entries at the same place; parameters and data may meet."""
    if len(shapes) > 1:  # As `optimization_barrier`.
        return list(ins)
    name, shape = eqn.primitive.name, shapes[0]
    out = mixed(ins, shape)
    out.is_data = any(v.is_data for v in ins)
    out.marks |= _marks(name, ins)
    if name in ("mul", "select_n"):
        trace.choose(ins)
    _join_signals(trace, name, ins, out)
    still = [_still(v, out) for v in ins if v.is_data or v.views]
    out.still = frozenset(range(len(shape))).intersection(*still)
    if name == "eq" and any("iota" in v.marks for v in ins):
        # One-hot along the axes of the range, along which the data are broadcast.
        out.views[Hot()] = along(out.still, shape)
    for i, v in enumerate(ins):
        if out.is_data and v.is_weight:
            _meet(trace, eqn, v, [w for w in ins if w.is_data], out)
        else:
            others = [*ins[:i], *ins[i + 1 :]]
            _carry_on(name, v, others, out)
            if name == "mul" and v.is_data:
                _scale(v, [w for w in others if w.is_data], out)
    if len(out.views) > _MOST_VIEWS:
        uses = sorted(key.use for key, _ in out.of(Output))[:-8]
        gone = {Output(use) for use in uses}
        of = lambda key: key.of if isinstance(key, Scaled) else key
        out.views = {k: v for k, v in out.views.items() if of(k) not in gone}
    return [out]


def _join_signals(trace: Trace, name: str, ins: list[Value], out: Value) -> None:
    """Where two signals meet, a sum may be a residual stream, a product a gate."""
    data = [(v.signal, v.read) for v in ins if v.is_data and v.signal is not None]
    signals = trace.signals
    adds, gates = name in ("add", "add_any"), name == "mul"
    if len(data) == 2 and (adds or gates):
        out.signal = (signals.add if adds else signals.times)(*data)


def _marks(name: str, ins: list[Value]) -> set[str]:
    marks = set(ins[0].marks) if len(ins) == 1 else set()
    marks |= {m for v in ins for m in v.marks & {"carry", "normed"}}
    data = [v for v in ins if v.is_data]
    if name in ("sqrt", "rsqrt") and data:
        marks.add("normed")
    if data and (name in ("exp", "logistic") or (name == "div" and is_gate(data[0]))):
        marks.add("gate")
    if name == "mul" and any(map(is_gate, data)) and _are_apart(data):
        marks.add("outer")
    return marks


def is_gate(value: Value) -> bool:
    """Whether data choose among others."""
    return "gate" in value.marks or Hot() in value.views


def _are_apart(data: list[Value]) -> bool:
    """Whether each of two data is a broadcast along an axis in which the other varies.

    Their product by entry is then an outer one.
    """
    if len(data) != 2 or len(data[0].shape) != len(data[1].shape):
        return False
    x, y = (
        {d for d, n in enumerate(v.shape) if n > 1 and d not in v.still} for v in data
    )
    return bool(x - y) and bool(y - x)


def _carry_on(name: str, value: Value, others: list[Value], out: Value) -> None:
    """The views of an operand are those of the result."""
    noisy = value.is_weight and any("noise" in v.marks for v in others)
    for key, view in value.views.items():
        if isinstance(key, Scaled) and name not in LINEAR:
            continue
        if isinstance(key, Met) and key.how == "sum" and name not in LINEAR:
            continue  # What was a sum goes on as activations.
        if isinstance(key, Hot) and not _stays_hot(name, others):
            continue
        if not value.shape and view.lost():
            continue
        if noisy and name == "mul":
            view = view.marked("noisy")
        scaled = isinstance(key, Met) and key.how == "scale"
        is_noise = scaled or "noisy" in view.marks
        if is_noise and name in _SUMS and _have_another(others, key):
            view = view.marked("spread")
        if value.shape != out.shape:
            view = widened(view, value.shape, out.shape)
        if name in NONLINEAR:
            view = view.marked("nonlinear", *(["abs"] if name == "abs" else []))
        out.views[key] = richer(out.views.get(key), view)


def _stays_hot(name: str, others: list[Value]) -> bool:
    """Whether a one-hot operand gives one-hot data, up to a factor and smoothing."""
    return name in LINEAR and (name == "mul" or not any(v.is_data for v in others))


def _have_another(values: list[Value], key: Any) -> bool:
    """Whether values hold another parameter that is not noisy."""
    views = ((k, view) for v in values for k, view in v.of(Leaf))
    return any(k != key and "noisy" not in view.marks for k, view in views)


def _meet(trace: Trace, eqn, weight: Value, data: list[Value], out: Value) -> None:
    """Parameters meet data entry by entry."""
    name = eqn.primitive.name
    for key, view in weight.of(Leaf):
        if weight.shape != out.shape:
            view = widened(view, weight.shape, out.shape)
        parts = view.parts()
        if view.lost() and weight.shape:
            trace.lose(key.number, view.lost() or "")
        elif view.summed and parts:
            if "parameters" in view.marks and name in _SUMS:
                out.views[Met(key.number, "sum")] = view
            else:
                of_constant(trace, eqn, key.number, view)
        else:
            kind = "elementwise" if parts else "reduced"
            trace.use(eqn, key.number, kind, view, batch=parts, detail=name)
            if parts:
                _note_meeting(trace, name, key, view, data, out)


def _note_meeting(trace: Trace, name: str, key: Leaf, view: View, data, out) -> None:
    x, parts = data[0], view.parts()
    still = _still(x, out)
    is_table = len(parts) > 1 and bool(view.at(still))
    is_scale = name in ("mul", "div") and max(p.size for p in parts) > 1
    for other in data:  # The scale of a norm is learned, and so are centres.
        is_after = is_table or (is_scale and "normed" in other.marks)
        trace.after |= other.before if is_after and trace.records else 0
    if len(parts) > 1:
        out.views[Met(key.number, _how(name, view, still))] = view
    is_outer = view.indexed and _hold_all(view, still) and "normed" not in x.marks
    if name == "mul" and len(parts) > 1:
        out.views[Scaled(key, still)] = view
    elif name == "mul" and is_outer:
        trace.lose(key.number, "its rows are used one by one")


def _how(name: str, view: View, still: Sequence[int]) -> str:
    if name in _SUMS:
        return "sum"
    return "broadcast" if view.at(still) else "scale"


def _still(x: Value, out: Value) -> tuple[int, ...]:
    """The axes of the result along which a factor is a broadcast."""
    if not x.shape:
        return tuple(range(len(out.shape)))
    sizes = zip(x.shape, out.shape, strict=True)
    return tuple(sorted(x.still | {d for d, (n, m) in enumerate(sizes) if n != m}))


def _hold_all(view: View, axes: Sequence[int]) -> bool:
    return all(d in axes for d in range(len(view.axes)) if view.at([d]))


def _scale(value: Value, others: list[Value], out: Value) -> None:
    """Data that hold parameters or outputs are scaled by data, perhaps before a sum."""
    for key, view in value.views.items():
        is_whole = value.shape == out.shape and len(view.parts()) > 1
        if isinstance(key, Rows | Met | Output) and is_whole and others:
            out.views[Scaled(key, _still(others[0], out))] = view


def of_constant(trace: Trace, eqn: Any, leaf: int, view: View) -> int | None:
    """A parameter times a constant, such as positions, that meets data afterwards."""
    if "parameters" in view.marks:
        trace.lose(leaf, "a product of two parameters")
        return None
    if "nonlinear" not in view.marks:
        trace.doubt(leaf, "a product with a constant, then with data")
        return None
    roles = {"inputs": view.summed, "outputs": view.parts(), "batch": view.indexed}
    return trace.use(eqn, leaf, "product", view, detail="of constants", **roles)


def _along(trace: Trace, eqn: Any, ins: list[Value], shapes: list) -> list[Value]:
    """A transform along an axis: what it mixes are no inputs of a product."""
    outs = elementwise(trace, eqn, ins, shapes)
    for out in outs:
        if out.is_weight:
            out.views = {k: v.marked("mixed") for k, v in out.views.items()}
    return outs


def _random(trace: Trace, eqn: Any, ins: list[Value], shapes: list) -> list[Value]:
    """What is drawn is no data, even if the key is folded with some."""
    return of_constants(eqn.primitive.name, [], shapes)


RULES.update(dict.fromkeys(ELEMENTWISE, elementwise))
RULES.update(dict.fromkeys(ALONG_AN_AXIS, _along))
RULES.update(dict.fromkeys(RANDOM, _random))
