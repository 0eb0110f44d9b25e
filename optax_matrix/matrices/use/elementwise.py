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
    Leaf,
    Met,
    Output,
    Rows,
    Scaled,
    Value,
    View,
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
    out.marks |= _marks(name, ins, out.is_data)
    _join_signals(trace, name, ins, out)
    still = set(range(len(shape)))
    for v in ins:
        if v.shape == shape and (v.is_data or v.views):
            still &= v.still
    out.still = frozenset(still)
    for v in ins:
        if out.is_data and v.is_weight:
            _meet(trace, eqn, v, [w for w in ins if w.is_data], out)
        else:
            _carry_on(name, v, out)
            if name == "mul" and v.is_data:
                _scale(v, [w for w in ins if w is not v and w.is_data], out)
    if len(out.views) > _MOST_VIEWS:
        uses = sorted(key for key, _ in out.of(Output))
        out.views = {k: v for k, v in out.views.items() if k not in uses[:-8]}
    return [out]


def _join_signals(trace: Trace, name: str, ins: list[Value], out: Value) -> None:
    """Where two signals meet, a sum may be a residual stream, a product a gate."""
    data = [(v.signal, v.read) for v in ins if v.is_data and v.signal is not None]
    signals = trace.signals
    adds, gates = name in _SUMS, name == "mul"
    if len(data) == 2 and (adds or gates):
        out.signal = (signals.add if adds else signals.times)(*data)


def _marks(name: str, ins: list[Value], is_data: bool) -> set[str]:
    marks = set(ins[0].marks) if len(ins) == 1 else set()
    marks |= {m for v in ins for m in v.marks & {"carry", "normed"}}
    data = [v for v in ins if v.is_data]
    if name == "eq" and is_data and any("iota" in v.marks for v in ins):
        marks.add("onehot")
    if name in LINEAR and any("onehot" in v.marks for v in data):
        marks |= {"onehot"} if len(data) == 1 or name == "mul" else set()
    if name in ("sqrt", "rsqrt") and is_data:
        marks.add("normed")
    if name == "mul" and len(data) == 2 and _are_apart(*data):
        marks.add("outer")
    return marks


def _are_apart(x: Value, y: Value) -> bool:
    """Whether each of two data is a broadcast along an axis in which the other varies.

    Their product by entry is then an outer one.
    """
    long = lambda v, axes: any(v.shape[d] > 1 for d in axes)
    same = x.shape == y.shape
    return same and long(x, x.still - y.still) and long(y, y.still - x.still)


def _carry_on(name: str, value: Value, out: Value) -> None:
    """The views of an operand are those of the result."""
    for key, view in value.views.items():
        if isinstance(key, Scaled) and name not in LINEAR:
            continue
        if isinstance(key, Met) and key.how == "sum" and _is_changed(name, out):
            continue
        if value.shape != out.shape:
            view = widened(view, value.shape, out.shape)
        if name in NONLINEAR:
            view = view.marked("nonlinear", *(["abs"] if name == "abs" else []))
        out.views[key] = richer(out.views.get(key), view)


def _is_changed(name: str, out: Value) -> bool:
    """Whether a sum is no sum any more, but goes on as activations."""
    return name not in LINEAR or (name == "mul" and "normed" in out.marks)


def _meet(trace: Trace, eqn, weight: Value, data: list[Value], out: Value) -> None:
    """Parameters meet data entry by entry."""
    name, x = eqn.primitive.name, data[0]
    for key, view in weight.of(Leaf):
        if weight.shape != out.shape:
            view = widened(view, weight.shape, out.shape)
        parts = view.parts()
        if view.summed and parts:
            of_constant(trace, eqn, key.number, view)
            continue
        kind = "elementwise" if parts else "reduced"
        trace.use(eqn, key.number, kind, view, batch=parts, detail=name)
        if not parts:
            continue
        if name in ("mul", "div") and max(p.size for p in parts) > 1 and trace.records:
            for other in data:  # The scale of a norm is learned, too.
                trace.after |= other.before if "normed" in other.marks else 0
        out.views[Met(key.number, "sum" if name in _SUMS else "scale")] = view
        if name == "mul":
            still = _still(x, out)
            if len(parts) > 1:
                out.views[Scaled(key, still)] = view
            elif view.indexed and _hold_all(view, still) and "normed" not in x.marks:
                trace.lose(key.number, "its rows are used one by one")


def _still(x: Value, out: Value) -> tuple[int, ...]:
    """The axes of the result along which a factor is a broadcast."""
    if len(x.shape) != len(out.shape):
        return ()
    sizes = zip(x.shape, out.shape, strict=True)
    return tuple(sorted(x.still | {d for d, (n, m) in enumerate(sizes) if n != m}))


def _hold_all(view: View, axes: Sequence[int]) -> bool:
    return all(d in axes for d in range(len(view.axes)) if view.at([d]))


def _scale(value: Value, others: list[Value], out: Value) -> None:
    """Data that hold a parameter are scaled by other data, perhaps before a sum."""
    for key, view in value.views.items():
        is_whole = value.shape == out.shape and len(view.parts()) > 1
        if isinstance(key, Rows | Met) and is_whole and others:
            out.views[Scaled(key, _still(others[0], out))] = view


def of_constant(trace: Trace, eqn: Any, leaf: int, view: View) -> int | None:
    """A parameter times a constant, such as positions, that meets data afterwards."""
    if "parameters" in view.marks:
        trace.lose(leaf, "a product of two parameters")
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
