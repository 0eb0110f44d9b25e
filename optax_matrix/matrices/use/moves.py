"""Operations that move entries: reshape, transpose, slice, concatenate."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from optax_matrix.matrices.use.elementwise import of_constant
from optax_matrix.matrices.use.trace import Trace, follows, mixed
from optax_matrix.matrices.use.views import (
    FREE,
    Hot,
    Leaf,
    Output,
    Part,
    Parts,
    Value,
    View,
    empty,
    free,
    known,
    reshaped,
    size_of,
)


@follows("broadcast_in_dim")
def _broadcast(trace: Trace, eqn, ins, shapes):
    value, shape = ins[0], shapes[0]
    dims = eqn.params["broadcast_dimensions"]
    old = {d: value.shape[i] for i, d in enumerate(dims)}
    is_wider = any(n > 1 and old.get(d) != n for d, n in enumerate(shape))

    def f(view: View) -> View:
        axes, dropped = empty(shape), []
        for i, d in enumerate(dims):
            if value.shape[i] == shape[d]:
                axes[d] = view.axes[i]
            else:
                dropped += known(view.axes[i])
        new = view.over(axes, dropped)
        return new.marked("broadcast") if is_wider else new

    out = trace.mapped(value, shape, f)
    same = {d for i, d in enumerate(dims) if value.shape[i] == shape[d]}
    moving = {d for i, d in enumerate(dims) if d in same and i not in value.still}
    out.still = frozenset(range(len(shape))) - moving
    return [out]


@follows("reshape", "squeeze")
def _reshape(trace: Trace, eqn, ins, shapes):
    value, shape = ins[0], shapes[0]
    # A batched convolution's `reshape` permutes the axes first.
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    if order is not None:
        value = _transposed(trace, value, order)
    return [trace.mapped(value, shape, lambda v: reshaped(v, value.shape, shape))]


@follows("transpose")
def _transpose(trace: Trace, eqn, ins, shapes):
    return [_transposed(trace, ins[0], eqn.params["permutation"])]


def _transposed(trace: Trace, value: Value, order: Sequence[int]) -> Value:
    shape = tuple(value.shape[p] for p in order)
    out = trace.mapped(value, shape, lambda v: v.over(v.axes[p] for p in order))
    out.still = frozenset(i for i, p in enumerate(order) if p in value.still)
    return out


@follows("slice")
def _slice(trace: Trace, eqn, ins, shapes):
    starts = eqn.params["start_indices"]
    if any(step != 1 for step in eqn.params["strides"] or ()):
        starts = [None] * len(shapes[0])
    return [sliced(trace, ins[0], shapes[0], starts)]


@follows("split")
def _split(trace: Trace, eqn, ins, shapes):
    axis, at, outs = eqn.params["axis"], 0, []
    for shape in shapes:
        starts = [0] * len(shape)
        starts[axis] = at
        outs.append(sliced(trace, ins[0], shape, starts))
        at += shape[axis]
    return outs


@follows("unstack")
def _unstack(trace: Trace, eqn, ins, shapes):
    value, axis, outs = ins[0], eqn.params["axis"], []
    for i, shape in enumerate(shapes):
        starts = [0] * len(value.shape)
        starts[axis] = i
        thick = (*shape[:axis], 1, *shape[axis:])
        one = sliced(trace, value, thick, starts)
        squeeze = lambda v, thick=thick, shape=shape: reshaped(v, thick, shape)
        outs.append(trace.mapped(one, shape, squeeze))
    return outs


def sliced(
    trace: Trace, value: Value, shape: Sequence[int], starts: Sequence[int | None]
) -> Value:
    """A slice that starts there; None for a start that is not known."""
    still: frozenset[int] = frozenset()
    out = dataclasses.replace(value, shape=tuple(shape), views={}, still=still)
    for key, view in value.views.items():
        axes = []
        for d, parts in enumerate(view.axes):
            new, cut = _cut(parts, value.shape[d], shape[d], starts[d])
            axes.append(new)
            if cut and isinstance(key, Output) and trace.records:
                trace.uses[key.use].cuts.add(cut)
        out.views[key] = view.over(axes)
    return out


def _cut(parts: Parts, old: int, new: int, start: int | None):
    """The parts of a slice of an axis; and the section, if of a parameter."""
    if old == new:
        return parts, None
    if not parts:
        return free(new), None
    first, rest = parts[0], size_of(parts[1:])
    if start is None or new % rest or start % rest:
        alone = (Part(first.axis, new, first.stride, FREE),)
        return (alone if len(parts) == 1 else free(new)), None
    at = first.start + start // rest * first.stride
    cut = Part(first.axis, new // rest, first.stride, at)
    section = (first.axis, at, cut.size * cut.stride) if first.axis != FREE else None
    return (cut, *parts[1:]), section


@follows("concatenate")
def _concatenate(trace: Trace, eqn, ins, shapes):
    return [_put_together(trace, eqn, ins, shapes[0], eqn.params["dimension"])]


@follows("stack")
def _stack(trace: Trace, eqn, ins, shapes):
    shape, axis = shapes[0], eqn.params.get("axis", 0)

    def wide(v: Value) -> Value:
        at = lambda x, new: (*x[:axis], new, *x[axis:])
        views = {k: x.over(at(x.axes, ())) for k, x in v.views.items()}
        return dataclasses.replace(v, shape=at(v.shape, 1), views=views)

    out = _put_together(trace, eqn, [wide(v) for v in ins], shape, axis)
    for key, view in out.views.items():
        at = free(shape[axis])
        out.views[key] = view.over((*view.axes[:axis], at, *view.axes[axis + 1 :]))
    return [out]


def _put_together(trace: Trace, eqn, ins: list[Value], shape, axis: int) -> Value:
    out = mixed(ins, shape)
    out.is_data = any(v.is_data for v in ins)
    found: dict[Any, list[View]] = defaultdict(list)
    for v in ins:
        for key, view in v.views.items():
            if out.is_data and v.is_weight:
                among_data(trace, eqn, key, view, "concatenate")
            else:
                found[key].append(view)
    if len(found[Hot()]) < len(ins):
        del found[Hot()]
    for key, views in found.items():
        own = [view for view in views if "attended" not in view.marks]
        if isinstance(key, Output) and len(own) > 1 and trace.records:
            axes = {p.axis for view in own for p in view.axes[axis]}
            trace.uses[key.use].rejoined |= axes
        parts = dict.fromkeys(known(p for view in views for p in view.axes[axis]))
        joint = _side_by_side(key, tuple(parts))
        before, after = views[0].axes[:axis], views[0].axes[axis + 1 :]
        out.views[key] = views[0].over((*before, joint, *after))
    return out


def _side_by_side(key: Any, parts: Parts) -> Parts:
    """Slices of one axis of outputs are that axis again."""
    axes = {part.axis for part in parts}
    if len(parts) < 2 or len(axes) > 1 or isinstance(key, Leaf):
        return parts
    return (Part(axes.pop(), sum(part.size for part in parts), 1, FREE),)


def among_data(trace: Trace, eqn, key: Any, view: View, detail: str) -> None:
    """A parameter is put in among data, as a token of its own or a start."""
    if isinstance(key, Leaf) and view.summed:
        if view.parts() and "parameters" not in view.marks:
            of_constant(trace, eqn, key.number, view)
        else:
            trace.lose(key.number, "a product of two parameters")
    elif isinstance(key, Leaf):
        trace.use(eqn, key.number, "table", view, batch=view.parts(), detail=detail)


@follows("tile")
def _tile(trace: Trace, eqn, ins, shapes):
    value, shape = ins[0], shapes[0]
    counts = [m // n for n, m in zip(value.shape, shape, strict=True)]

    def f(view: View) -> View:
        pairs = zip(counts, view.axes, strict=True)
        return view.over((*free(n), *parts) for n, parts in pairs).marked("broadcast")

    return [trace.mapped(value, shape, f)]


@follows("pad")
def _pad(trace: Trace, eqn, ins, shapes):
    return [trace.mapped(ins[0], shapes[0], lambda view: view)]
