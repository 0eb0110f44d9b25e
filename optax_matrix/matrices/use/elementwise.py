"""Operations entry by entry, and reductions."""

from typing import Any

from optax_matrix.matrices.use.primitives import (
    ELEMENTWISE,
    LINEAR,
    NONLINEAR,
    RANKING,
    REDUCTIONS,
)
from optax_matrix.matrices.use.trace import RULES, Trace, follows, mixed
from optax_matrix.matrices.use.views import (
    Leaf,
    Output,
    Scaled,
    Value,
    View,
    known,
    richer,
    size_of,
    widened,
)

_MOST_VIEWS = 12  # A residual stream would collect one of each layer.


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
    if len(out.views) > _MOST_VIEWS:
        uses = sorted(key for key, _ in out.of(Output))
        out.views = {k: v for k, v in out.views.items() if k not in uses[:-8]}
    return [out]


def _join_signals(trace: Trace, name: str, ins: list[Value], out: Value) -> None:
    """Where two signals meet, a sum may be a residual stream, a product a gate."""
    data = [(v.signal, v.read) for v in ins if v.is_data and v.signal is not None]
    signals = trace.signals
    adds, gates = name in ("add", "add_any", "sub"), name == "mul"
    if len(data) == 2 and (adds or gates):
        out.signal = (signals.add if adds else signals.times)(*data)


def _marks(name: str, ins: list[Value], is_data: bool) -> set[str]:
    marks = set(ins[0].marks) if len(ins) == 1 else set()
    marks |= {m for v in ins for m in v.marks & {"carry", "normed"}}
    if name == "eq" and is_data and any("iota" in v.marks for v in ins):
        marks.add("onehot")
    if name in ("sqrt", "rsqrt") and is_data:
        marks.add("normed")
    return marks


def _carry_on(name: str, value: Value, out: Value) -> None:
    """The views of an operand are those of the result."""
    for key, view in value.views.items():
        if isinstance(key, Scaled) and name not in LINEAR:
            continue
        if value.shape != out.shape:
            view = widened(view, value.shape, out.shape)
        if name in NONLINEAR:
            view = view.marked("nonlinear", *(["abs"] if name == "abs" else []))
        out.views[key] = richer(out.views.get(key), view)


def _meet(trace: Trace, eqn, weight: Value, data: list[Value], out: Value) -> None:
    """Parameters meet data entry by entry."""
    name, x = eqn.primitive.name, data[0]
    for key, view in weight.of(Leaf):
        if weight.shape != out.shape:
            view = widened(view, weight.shape, out.shape)
        parts = view.parts()
        if view.summed and parts:
            constants(trace, eqn, key.number, view)
            continue
        kind = "elementwise" if parts else "reduced"
        trace.use(eqn, key.number, kind, view, batch=parts, detail=name)
        if not parts or not trace.records:
            continue
        if name in ("mul", "div") and max(p.size for p in parts) > 1:
            for other in data:  # The scale of a norm is learned, too.
                trace.after |= other.before if "normed" in other.marks else 0
        if name == "mul" and len(parts) > 1 and len(x.shape) == len(out.shape):
            sizes = zip(x.shape, out.shape, strict=True)
            still = x.still | {d for d, (n, m) in enumerate(sizes) if n != m}
            out.views[Scaled(key.number, tuple(sorted(still)))] = view


def constants(trace: Trace, eqn: Any, leaf: int, view: View) -> int | None:
    """A parameter times a constant, such as positions, that meets data afterwards."""
    if "parameters" in view.marks:
        trace.lose(leaf, "a product of two parameters")
        return None
    roles = {"inputs": view.summed, "outputs": view.parts(), "batch": view.indexed}
    return trace.use(eqn, leaf, "product", view, detail="of constants", **roles)


def reduction(trace: Trace, eqn: Any, ins: list[Value], shapes: list) -> list[Value]:
    """A sum, maximum or order along axes."""
    name, value = eqn.primitive.name, ins[0]
    dims = _dims(eqn, value)
    if name in RANKING and trace.records:
        for key, view in value.of(Output):
            trace.uses[key.use].selected |= _selected(trace, name, key, view, dims)
    outs = []
    for shape in shapes:
        out = mixed(ins, shape)
        out.is_data = value.is_data
        if len(shape) == len(value.shape) - len(dims):
            _reduce_views(trace, eqn, value, dims, out)
        elif value.is_weight:
            trace.lose_all(value, name)
        outs.append(out)
    return outs


def _dims(eqn: Any, value: Value) -> tuple[int, ...]:
    axes = eqn.params.get("axes")
    if axes is not None:
        return tuple(axes)
    last = len(value.shape) - 1
    axis = eqn.params.get("axis", eqn.params.get("dimension"))
    return (last if axis is None else axis,)


def _selected(trace: Trace, name: str, key: Output, view: View, dims) -> set[str]:
    """How a ranking treats the outputs of a use: by them, or along another axis."""
    hit = view.at(dims)
    count = size_of(known(trace.uses[key.use].outputs))
    is_whole = size_of(hit) == count or "reduce" not in name
    if hit and "abs" not in view.marks and is_whole:
        return {name}
    if hit or not view.parts():
        return set()
    if name == "reduce_max":
        return {"scores"}  # A softmax over keys: attention.
    if name in ("top_k", "sort", "argmax") and size_of(view.parts()) == count:
        return {"another axis"}
    return set()


def _reduce_views(trace: Trace, eqn: Any, value: Value, dims, out: Value) -> None:
    for key, view in value.views.items():
        if isinstance(key, Scaled) and eqn.primitive.name == "reduce_sum":
            _product_by_hand(trace, eqn, key, view, dims, value)
        axes = [axis for d, axis in enumerate(view.axes) if d not in dims]
        out.views[key] = view.over(axes).marked("nonlinear")


def _product_by_hand(trace: Trace, eqn, key: Scaled, view: View, dims, value) -> None:
    """``(x[..., None] * w).sum(-2)``: a product, if x is still along an axis."""
    rest = [d for d in range(len(view.axes)) if d not in dims]
    summed = view.at(dims)
    outputs = view.at(d for d in rest if d in key.still)
    batch = view.at(d for d in rest if d not in key.still)
    if summed and outputs:
        roles = {"inputs": summed, "outputs": outputs}
        roles["batch"] = [*batch, *view.indexed]
        trace.use(eqn, key.leaf, "product", view, value, detail="as a sum", **roles)


@follows("iota")
def _iota(trace, eqn, ins, shapes):
    return [Value(shapes[0], marks=frozenset(["iota"]))]


RULES.update(dict.fromkeys(ELEMENTWISE, elementwise))
RULES.update(dict.fromkeys(REDUCTIONS, reduction))
