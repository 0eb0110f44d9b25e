"""Products, where the axes of a parameter get their meaning, and convolutions."""

from typing import Any, NamedTuple

from optax_matrix.matrices.use.elementwise import of_constant
from optax_matrix.matrices.use.trace import Trace, follows, mixed
from optax_matrix.matrices.use.views import (
    Leaf,
    Output,
    Parts,
    Rows,
    Value,
    View,
    empty,
    richer,
    size_of,
)


class _Factor(NamedTuple):
    """One factor of a product, and where its axes are in the result.

    Attributes:
        value: The factor.
        summed: Its axes that the product sums over.
        batch: Its axes that both factors share, in the order of the result.
        rest: Its other axes.
        at: The axis of the result at which those start.
    """

    value: Value
    summed: tuple[int, ...]
    batch: tuple[int, ...]
    rest: tuple[int, ...]
    at: int

    def placed(self, view: View, shape: tuple[int, ...], *, shares: bool = True):
        """The axes of a view in the result."""
        axes = empty(shape)
        if shares:
            for i, d in enumerate(self.batch):
                axes[i] = view.axes[d]
        for i, d in enumerate(self.rest):
            axes[self.at + i] = view.axes[d]
        return axes


def _factors(eqn: Any, x: Value, y: Value) -> tuple[_Factor, _Factor]:
    (cx, cy), (bx, by) = eqn.params["dimension_numbers"]
    rest = lambda v, *used: tuple(
        d for d in range(len(v.shape)) if not any(d in dims for dims in used)
    )
    fx, fy = rest(x, cx, bx), rest(y, cy, by)
    first = _Factor(x, tuple(cx), tuple(bx), fx, len(bx))
    return first, _Factor(y, tuple(cy), tuple(by), fy, len(bx) + len(fx))


@follows("dot_general")
def _dot_general(trace: Trace, eqn, ins, shapes):
    x, y = _activations(trace, eqn, *ins)
    pair, shape = _factors(eqn, x, y), shapes[0]
    for weight, data in (pair, pair[::-1]):
        x = data.value
        stands_for_data = not x.is_weight and x.marks & {"noise", "zero"}
        if weight.value.is_weight and (x.is_data or stands_for_data):
            return [_with_data(trace, eqn, weight, data, shape)]
    if x.is_weight or y.is_weight:
        return [_of_weights(trace, pair, shape)]
    return [_of_data(trace, eqn, pair, shape)]


def _activations(trace: Trace, eqn, x: Value, y: Value) -> tuple[Value, Value]:
    """Of two factors from parameters, the one that stands for data, if one does.

    A parameter that is repeated for each example, of which indices have chosen
    entries, or whose product has gone through a nonlinear function, holds activations:
    latents, prompts, positions.
    """
    if not (x.is_weight and y.is_weight):
        return x, y

    def has(value: Value, *marks: str, summed: bool = False) -> bool:
        views = [v for v in value.views.values() if v.summed or not summed]
        return any(set(marks) & view.marks for view in views)

    wide = [has(v, "broadcast", "chosen") for v in (x, y)]
    acts = [a or has(v, "nonlinear", summed=True) for a, v in zip(wide, (x, y), strict=True)]
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


def _with_data(trace: Trace, eqn, w: _Factor, x: _Factor, shape) -> Value:
    """The product of parameters with data."""
    out = mixed([w.value, x.value], shape)
    whole = any(not view.summed for _, view in w.value.of(Leaf))
    for key, view in w.value.of(Leaf):
        inputs, outputs = view.at(w.summed), view.at(w.rest)
        batch = [*view.at(w.batch), *view.indexed]
        if view.summed:
            found = _of_factor(trace, key.number, view, inputs, outputs, whole)
            if found is None:
                continue
            inputs, outputs = found
        if not inputs and not outputs:
            kind = "elementwise" if batch else "reduced"
            trace.use(eqn, key.number, kind, view, batch=batch, detail="dot_general")
            continue
        is_lookup = "onehot" in x.value.marks
        kind = "lookup" if is_lookup else "product"
        roles = {"inputs": inputs, "outputs": outputs, "batch": batch}
        number = trace.use(eqn, key.number, kind, view, x.value, **roles)
        _follow_outputs(trace, w, x, view, shape, out)
        trace.puts_out(number, out, x.value)
        if number is not None and not is_lookup and not view.summed:
            axes = w.placed(view, shape, shares=False)
            out.views[Output(number)] = View(tuple(axes))
    return out


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


def _follow_outputs(trace: Trace, w: _Factor, x: _Factor, weight, shape, out) -> None:
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


def _of_weights(trace: Trace, pair: tuple[_Factor, _Factor], shape) -> Value:
    """The product of a parameter with a constant or with another parameter."""
    out = Value(shape)
    for w, other in (pair, pair[::-1]):
        for key, view in w.value.of(Leaf):
            summed = (*view.summed, *view.at(w.summed))
            axes: list[Parts] = w.placed(view, shape)
            new = View(tuple(axes), summed, view.indexed, view.layers, view.marks)
            if other.value.is_weight:
                new = new.marked("parameters")
            if key in out.views:
                trace.lose(key.number, "a product with itself")
            out.views[key] = richer(out.views.get(key), new)
    return out


def _of_data(trace: Trace, eqn, pair: tuple[_Factor, _Factor], shape) -> Value:
    """A product of data with data: attention, or rows that were looked up."""
    x, y = (factor.value for factor in pair)
    out = mixed([x, y], shape)
    out.signal = None
    if trace.records:
        only = x.before & ~y.before, y.before & ~x.before
        trace.after |= only[0] | only[1] if all(only) else 0
    for factor in pair:
        for key, view in factor.value.views.items():
            if isinstance(key, Output) and trace.records:
                _note_of_data(trace.uses[key.use], factor, view)
            if isinstance(key, Rows):
                _indexed(trace, eqn, pair, factor, key.leaf, view)
            if isinstance(key, Output | Rows):
                out.views[key] = view.over(factor.placed(view, shape))
    return out


def _note_of_data(use: Any, factor: _Factor, view: View) -> None:
    batch, summed = view.at(factor.batch), view.at(factor.summed)
    rest = view.at(factor.rest)
    if batch and (summed or rest):
        use.heads.add(size_of(batch))
    if summed and rest:
        use.selected.add("contracted")


def _indexed(trace: Trace, eqn, pair, factor: _Factor, leaf: int, view: View) -> None:
    """Matrices that indices have chosen, such as those of experts."""
    other = pair[1] if factor is pair[0] else pair[0]
    inputs, outputs = view.at(factor.summed), view.at(factor.rest)
    batch = [*view.at(factor.batch), *view.indexed]
    if inputs and outputs:
        roles = {"inputs": inputs, "outputs": outputs, "batch": batch}
        more = {"x": other.value, "detail": "indexed", **roles}
        trace.use(eqn, leaf, "product", view, **more)


@follows("ragged_dot_general", "ragged_dot")
def _ragged_dot(trace: Trace, eqn, ins, shapes):
    """Experts: rows of data meet the matrix of their group."""
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


@follows("conv_general_dilated")
def _convolution(trace: Trace, eqn, ins, shapes):
    x, w = ins
    out = mixed(ins, shapes[0])
    if not w.is_weight or (x.views and not x.is_data):
        for v in ins:
            if v.is_weight:
                trace.lose_all(v, eqn.primitive.name)
        return [out]
    numbers = eqn.params["dimension_numbers"]
    to, of, *spatial = numbers.rhs_spec
    groups = eqn.params["feature_group_count"]
    for key, view in w.of(Leaf):
        outputs, batch, left = _grouped(view.at([to]), groups)
        roles = {"inputs": view.at([of, *spatial]), "outputs": outputs}
        roles["batch"] = [*view.indexed, *batch]
        detail = "of one channel each" if left > 1 and w.shape[of] == 1 else ""
        number = trace.use(
            eqn, key.number, "convolution", view, x, detail=detail, **roles
        )
        trace.puts_out(number, out, x)
        if number is not None:
            trace.uses[number].groups = left
            axes = empty(shapes[0])
            axes[numbers.out_spec[1]] = view.axes[to]
            out.views[Output(number)] = View(tuple(axes))
    return [out]


def _grouped(outputs: list, groups: int) -> tuple[list, list, int]:
    """Outputs, batch, and the groups left that one axis of outputs holds.

    A mapped convolution has its members as the slowest part of its groups.
    """
    outputs, batch = list(outputs), []
    while groups > 1 and len(outputs) > 1 and groups % outputs[0].size == 0:
        groups //= outputs[0].size
        batch.append(outputs.pop(0))
    return outputs, batch, groups
