"""Products of data with data: attention, and data that parameters have met before."""

from typing import Any

from optax_matrix.matrices.use.elementwise import is_gate
from optax_matrix.matrices.use.factors import Factor, sums_over_hot
from optax_matrix.matrices.use.trace import Trace, bits, mixed
from optax_matrix.matrices.use.uses import INDEXED, MET
from optax_matrix.matrices.use.views import Met, Output, Rows, Value, View, size_of


def of_data(trace: Trace, eqn, pair: tuple[Factor, Factor], shape) -> Value:
    """A product of data with data: attention, or rows that were looked up."""
    x, y = (factor.value for factor in pair)
    out = mixed([x, y], shape)
    out.signal = None
    if trace.records:
        only = x.before & ~y.before, y.before & ~x.before
        trace.after |= only[0] | only[1] if all(only) else 0
    for factor, other in (pair, pair[::-1]):
        for key, view in factor.value.views.items():
            if isinstance(key, Output):
                if trace.records:
                    _note_of_data(trace.uses[key.use], factor, view, other)
                view = view.marked("attended")
            elif isinstance(key, Rows):
                _indexed(trace, eqn, factor, other, key.leaf, view, out)
            elif isinstance(key, Met):
                of_met(trace, eqn, factor, other, key, view, out)
            if isinstance(key, Output | Rows):
                out.views[key] = view.over(factor.placed(view, shape))
    is_outer = all(f.rest for f in pair) and not any(f.summed for f in pair)
    if is_outer and (is_gate(x) or is_gate(y)):
        out.marks |= {"outer"}
    return out


def _note_of_data(use: Any, factor: Factor, view: View, other: Factor) -> None:
    batch, summed = view.at(factor.batch), view.at(factor.summed)
    rest = view.at(factor.rest)
    if batch and (summed or rest):  # Queries may be more than keys and values.
        use.heads.add(size_of(batch) * (size_of(rest) if summed else 1))
    if summed:
        use.selected.add("summed")
    if summed and rest:
        use.mixed(summed, is_hot=sums_over_hot(other))


def _indexed(trace, eqn, w: Factor, x: Factor, leaf: int, view: View, out) -> None:
    """Matrices that indices have chosen, such as those of experts."""
    inputs, outputs = view.at(w.summed), view.at(w.rest)
    free = [d for d, n in enumerate(w.value.shape) if n > 1 and not view.at([d])]
    if outputs and len(free) == 1 and free[0] in w.summed:
        trace.lose(leaf, "a product that sums over its rows")
    if not (inputs and outputs):
        return
    if is_gate(x.value) or _are_rows(trace, x.value):
        trace.lose(leaf, "bilinear in two inputs")
        return
    roles = {"inputs": inputs, "outputs": outputs}
    roles["batch"] = [*view.at(w.batch), *view.indexed]
    more = {"x": x.value, "detail": INDEXED, **roles}
    number = trace.use(eqn, leaf, "product", view, **more)
    trace.puts_out(number, out, x.value)
    if number is not None:
        axes = w.placed(view, out.shape, shares=False)
        out.views[Output(number)] = View(tuple(axes))


def _are_rows(trace: Trace, value: Value) -> bool:
    """Whether data are rows of tables, with no product since."""
    kinds = (trace.uses[number].kind for number in bits(value.before))
    return bool(value.before) and all(kind == "lookup" for kind in kinds)


def has_free(value: Value) -> bool:
    """Whether data vary along axes that no parameter which they met has."""
    views = [view for _, view in value.of(Met)]
    rest = [d for d in range(len(value.shape)) if not any(v.at([d]) for v in views)]
    return any(value.shape[d] > 1 for d in rest)


def of_met(trace: Trace, eqn, w: Factor, x: Factor, key: Met, view, out) -> None:
    """The product of w, data that a parameter has met entry by entry, with x."""
    inputs, outputs = view.at(w.summed), view.at(w.rest)
    if view.summed and bool(inputs) != bool(outputs):
        inputs, outputs = inputs or view.summed, outputs or view.summed
    if not (inputs and outputs):
        return
    hits = [bool(v.at(w.summed)) for _, v in w.value.of(Output)]
    if key.how != "broadcast" and hits and not any(hits):
        return  # A bias or a scale of activations.
    is_known = any(use.is_product for use in trace.uses_of(key.leaf))
    if "spread" in view.marks or (has_free(w.value) and not is_known):
        trace.lose(key.leaf, "a product " + MET)
        return
    roles = {"inputs": inputs, "outputs": outputs}
    roles["batch"] = [*view.at(w.batch), *view.indexed]
    number = trace.use(eqn, key.leaf, "product", view, x.value, detail=MET, **roles)
    trace.puts_out(number, out, x.value)
