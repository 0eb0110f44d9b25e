"""Sums, maxima and orders along axes; products that are written as sums."""

from typing import Any

from optax_matrix.matrices.use.primitives import RANKING, REDUCTIONS
from optax_matrix.matrices.use.trace import RULES, Trace, mixed
from optax_matrix.matrices.use.uses import INDEXED, MET
from optax_matrix.matrices.use.views import (
    Hot,
    Leaf,
    Met,
    Output,
    Rows,
    Scaled,
    Value,
    View,
    known,
    size_of,
)


def reduction(trace: Trace, eqn: Any, ins: list[Value], shapes: list) -> list[Value]:
    """A sum, maximum or order along axes."""
    name, value = eqn.primitive.name, ins[0]
    dims = _dims(eqn, value)
    ranks = _ranked(trace, eqn, value, dims) if name in RANKING else 0
    outs = []
    for shape in shapes:
        out = mixed(ins, shape)
        out.is_data = value.is_data
        out.ranks |= ranks
        if len(shape) == len(value.shape) - len(dims):
            _reduce_views(trace, eqn, value, dims, out)
        elif value.is_weight:
            trace.lose_all(value, name)
        outs.append(out)
    return outs


def _dims(eqn: Any, value: Value) -> tuple[int, ...]:
    axes = eqn.params.get("axes", eqn.params.get("dimensions"))
    if axes is not None:
        return tuple(axes)
    last = len(value.shape) - 1
    axis = eqn.params.get("axis", eqn.params.get("dimension"))
    return (last if axis is None else axis,)


def _ranked(trace: Trace, eqn: Any, value: Value, dims) -> int:
    """The uses whose outputs are ranked, as bits."""
    ranks, name = 0, eqn.primitive.name
    if name == "sort" and len(eqn.invars) == 1:
        name = "sorted values"
    if name == "top_k" and type(eqn.outvars[1]).__name__ == "DropVar":
        name = "top values"
    for key, view in value.of(Output):
        ways = _selected(trace, name, key, view, dims)
        if trace.records and ways <= {"scores", "another axis"}:
            trace.uses[key.use].selected |= ways
        elif trace.records:
            trace.rank(key.use, ways)
            ranks |= 1 << key.use
    return ranks


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
        if isinstance(key, Scaled):
            _product_by_hand(trace, eqn, key, view, dims, value, out)
            continue
        if isinstance(key, Hot) and eqn.primitive.name != "reduce_sum":
            continue
        axes = [axis for d, axis in enumerate(view.axes) if d not in dims]
        out.views[key] = view.over(axes).marked("nonlinear")


def _product_by_hand(trace, eqn, key: Scaled, view: View, dims, value, out) -> None:
    """``(x[..., None] * w).sum(-2)``: a product, if x is still along an axis."""
    rest = [d for d in range(len(view.axes)) if d not in dims]
    summed = view.at(dims)
    outputs = view.at(d for d in rest if d in key.still)
    batch = view.at(d for d in rest if d not in key.still)
    if not (summed and outputs):
        return
    if isinstance(key.of, Output):
        if trace.records:
            hot = value.views.get(Hot())
            is_hot = hot is not None and bool(hot.at(dims))
            trace.uses[key.of.use].mixed(summed, is_hot=is_hot)
        return
    if eqn.primitive.name != "reduce_sum":
        leaf = key.of.number if isinstance(key.of, Leaf) else key.of.leaf
        trace.lose(leaf, f"{eqn.primitive.name} of a product by entry")
        return
    roles = {"inputs": summed, "outputs": outputs, "batch": [*batch, *view.indexed]}
    leaf = key.of.number if isinstance(key.of, Leaf) else key.of.leaf
    detail = {Met: MET, Rows: INDEXED}.get(type(key.of), "as a sum")
    number = trace.use(eqn, leaf, "product", view, value, detail=detail, **roles)
    trace.puts_out(number, out, value)
    if number is not None:
        axes = [view.axes[d] if d in key.still else () for d in rest]
        out.views[Output(number)] = View(tuple(axes))


RULES.update(dict.fromkeys(REDUCTIONS, reduction))
