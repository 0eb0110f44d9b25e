"""Products, where the axes of a parameter get their meaning."""

from typing import Any

from optax_matrix.matrices.use.elementwise import of_constant
from optax_matrix.matrices.use.factors import Factor, factors_of, sums_over_hot
from optax_matrix.matrices.use.mixtures import has_free, of_data, of_met
from optax_matrix.matrices.use.trace import Trace, follows, mixed
from optax_matrix.matrices.use.views import (
    Leaf,
    Met,
    Output,
    Parts,
    Rows,
    Value,
    View,
    empty,
    richer,
)


@follows("dot_general")
def _dot_general(trace: Trace, eqn, ins, shapes):
    trace.choose(ins)
    x, y = _activations(trace, eqn, *ins)
    pair, shape = factors_of(eqn, x, y), shapes[0]
    for weight, data in (pair, pair[::-1]):
        other = data.value
        stands_for_data = not other.is_weight and other.marks & {"noise", "zero"}
        if weight.value.is_weight and (other.is_data or stands_for_data):
            return [_with_data(trace, eqn, weight, data, shape)]
    if x.is_weight or y.is_weight:
        return [_of_weights(trace, pair, shape)]
    return [of_data(trace, eqn, pair, shape)]


def _activations(trace: Trace, eqn, x: Value, y: Value) -> tuple[Value, Value]:
    """Of two factors from parameters, the one that stands for data, if one does.

    A parameter that is repeated for each example, or whose product has gone through a
    nonlinear function, holds activations: latents, prompts, positions.
    """
    if not (x.is_weight and y.is_weight):
        return x, y

    def has(value: Value, *marks: str, summed: bool = False) -> bool:
        views = [v for v in value.views.values() if v.summed or not summed]
        return any(set(marks) & view.marks for view in views)

    wide = [has(v, "broadcast") for v in (x, y)]
    deep = [has(v, "nonlinear", summed=True) for v in (x, y)]
    acts = [w or d for w, d in zip(wide, deep, strict=True)]
    signs = wide if wide[0] != wide[1] else acts
    if signs[0] == signs[1]:
        return x, y
    return (_as_data(trace, eqn, x), y) if signs[0] else (x, _as_data(trace, eqn, y))


def _as_data(trace: Trace, eqn, value: Value) -> Value:
    out = Value(value.shape, True, before=value.before)
    for key, view in value.of(Leaf):
        if view.summed and not view.parts():
            trace.lose(key.number, "a product of two parameters")
            continue
        if view.summed:
            number = of_constant(trace, eqn, key.number, view)
        else:
            roles = {"batch": view.parts(), "detail": "as activations"}
            number = trace.use(eqn, key.number, "table", view, **roles)
        out.before |= 0 if number is None else 1 << number
    return out


def _with_data(trace: Trace, eqn, w: Factor, x: Factor, shape) -> Value:
    """The product of parameters with data."""
    out = mixed([w.value, x.value], shape)
    views = [view for _, view in w.value.of(Leaf) if not view.summed]
    whole = any(view.at(w.summed) and view.at(w.rest) for view in views)
    beside = False
    for key, view in w.value.of(Leaf):
        roles = _roles(trace, key.number, view, w, x, whole=whole)
        if roles is None:
            continue
        if not roles["inputs"] and not roles["outputs"]:
            kind = "elementwise" if roles["batch"] else "reduced"
            roles = {"batch": roles["batch"], "detail": "dot_general"}
            trace.use(eqn, key.number, kind, view, **roles)
            continue
        is_lookup = sums_over_hot(x)
        kind = "lookup" if is_lookup else "product"
        number = trace.use(eqn, key.number, kind, view, x.value, **roles)
        _follow_outputs(trace, w, x, view, shape, out)
        trace.puts_out(number, out, x.value, beside=beside)
        beside = True
        if view.summed and number is not None:  # The other factor is on the other side.
            trace.uses[number].leaves_out("reads" if view.at(w.rest) else "writes")
        if is_lookup:
            axes = w.placed(view, shape)
            out.views[Rows(key.number)] = view.over(axes, roles["inputs"])
        elif number is not None and not view.summed:
            axes = w.placed(view, shape, shares=False)
            out.views[Output(number)] = View(tuple(axes))
    for key, view in x.value.of(Met):
        if key.how in ("scale", "broadcast") and not has_free(x.value):
            of_met(trace, eqn, x, w, key, view, out)
    return out


def _roles(
    trace: Trace, leaf: int, view: View, w: Factor, x: Factor, *, whole: bool
) -> dict[str, Any] | None:
    """The parts of a parameter on the sides of a product; None if it is not told.

    ``whole`` says whether the product has a parameter with both sides.
    """
    inputs, outputs = view.at(w.summed), view.at(w.rest)
    reason = view.lost()
    if "spread" in view.marks:
        reason = "a scale of noise"
    elif "mixed" in view.marks:
        reason = "a product after a transform along an axis"
    elif "repeated" in view.marks:
        reason = "a product with repeated rows"
    elif "outer" in x.value.marks and len(inputs) > 1:
        reason = "bilinear in two inputs"
    elif view.summed:
        found = _of_factor(trace, leaf, view, inputs, outputs, whole)
        if found is None:
            return None
        inputs, outputs = found
    elif bool(inputs) != bool(outputs) and _is_one_of_many(view, w, x) and not whole:
        reason = "its rows are used one by one"
    if reason:
        trace.lose(leaf, reason)
        return None
    batch = [*view.at(w.batch), *view.indexed]
    return {"inputs": inputs, "outputs": outputs, "batch": batch}


def _is_one_of_many(view: View, w: Factor, x: Factor) -> bool:
    """Whether a vector is a row of a matrix, and not of one layer of many."""
    is_of_layer = view.layers and "carry" in x.value.marks
    return bool(view.indexed) and not w.batch and not is_of_layer


def _of_factor(trace: Trace, leaf: int, view: View, inputs, outputs, whole: bool):
    """The sides of a factor of low rank, which is summed with another one before.

    Next to a whole matrix, as W + BA, each factor has the rank as its other side.
    """
    if not whole:
        if "parameters" in view.marks:
            trace.lose(leaf, "a product of two parameters")
            return None
        if view.parts():
            trace.lose(leaf, "a product with a constant, then with data")
        return None
    if inputs and not outputs:
        return inputs, list(view.summed)
    if outputs and not inputs:
        return list(view.summed), outputs
    if view.parts():
        trace.lose(leaf, "factors on both sides")
        return None
    return inputs, outputs


def _follow_outputs(trace: Trace, w: Factor, x: Factor, weight, shape, out) -> None:
    """Outputs of earlier uses in the axes of the data that a product leaves."""
    if not trace.records:
        return
    for key, view in x.value.of(Output):
        use = trace.uses[key.use]
        use.summed |= {p.axis for p in view.at(x.summed)}
        for d, own in zip(x.batch, w.batch, strict=True):
            if weight.at([own]):
                use.kept |= {p.axis for p in view.at([d])}
        new = view.over(x.placed(view, shape))
        if new.parts():
            out.views[key] = new


def _of_weights(trace: Trace, pair: tuple[Factor, Factor], shape) -> Value:
    """The product of a parameter with a constant or with another parameter."""
    out = Value(shape)
    for w, other in (pair, pair[::-1]):
        for key, view in w.value.of(Leaf):
            summed = (*view.summed, *view.at(w.summed))
            axes: list[Parts] = w.placed(view, shape)
            new = View(tuple(axes), summed, view.indexed, view.layers, view.marks)
            if other.value.is_weight:
                new = new.marked("parameters")
            out.views[key] = richer(out.views.get(key), new)
    return out


@follows("ragged_dot_general")
def _ragged_dot(trace: Trace, eqn, ins, shapes):
    """Experts: rows of data meet the matrix of their group."""
    trace.choose(ins)
    x, w, sizes = ins[:3]
    out = mixed(ins, shapes[0])
    if not (w.is_weight and x.is_data) or x.is_weight:
        for v in ins:
            trace.lose_all(v, eqn.primitive.name)
        return [out]
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, summed), (_, batch) = numbers.dot_dimension_numbers
    shared = [*batch, *numbers.rhs_group_dimensions]
    rest = [d for d in range(len(w.shape)) if d not in (*summed, *shared)]
    for key, view in w.of(Leaf):
        roles = {"inputs": view.at(summed), "outputs": view.at(rest)}
        roles["batch"] = [*view.at(shared), *view.indexed]
        number = trace.use(
            eqn, key.number, "product", view, x, detail="of groups", **roles
        )
        trace.puts_out(number, out, x)
        if number is not None:
            axes = empty(shapes[0])
            axes[-1] = view.axes[rest[-1]]
            out.views[Output(number)] = View(tuple(axes))
            trace.after |= sizes.before
    return [out]
