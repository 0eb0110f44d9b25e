"""Look-ups of rows by indices that are data, and slices at offsets."""

from typing import Any

from optax_matrix.matrices.use.moves import among_data, sliced
from optax_matrix.matrices.use.trace import Trace, follows, mixed
from optax_matrix.matrices.use.views import (
    FREE,
    Hot,
    Leaf,
    Met,
    Output,
    Rows,
    Value,
    View,
    along,
    empty,
    known,
)


@follows("dynamic_slice")
def _dynamic_slice(trace: Trace, eqn, ins, shapes):
    value, *indices = ins
    shape = shapes[0]
    pairs = zip(value.shape, shape, strict=True)
    cut = [d for d, (n, m) in enumerate(pairs) if n != m]
    trace.choose(ins, by_index=True)
    is_row = all(shape[d] == 1 for d in cut)
    is_chosen = any(indices[d].is_data for d in cut)
    if value.is_weight and is_chosen and is_row:
        where = {d: d for d in range(len(shape)) if d not in cut}
        return [_looked_up(trace, eqn, value, cut, shape, where)]
    starts = [getattr(v, "val", None) for v in eqn.invars[1:]]
    starts = [None if start is None else int(start) for start in starts]
    out = sliced(trace, value, shape, starts)
    if not value.is_weight:  # Else a run of rows, of columns or of positions.
        out.is_data |= is_chosen
    return [out]


@follows("dynamic_update_slice")
def _dynamic_update_slice(trace: Trace, eqn, ins, shapes):
    return [_updated(trace, eqn, ins[0], ins[1], ins[2:], shapes[0])]


@follows("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul")
@follows("scatter-sub")
def _scatter(trace: Trace, eqn, ins, shapes):
    out = _updated(trace, eqn, ins[0], ins[2], ins[1:2], shapes[0])
    if ins[1].is_data and not any(v.is_data or v.views for v in (ins[0], ins[2])):
        dims = eqn.params["dimension_numbers"].scatter_dims_to_operand_dims
        out.views[Hot()] = along(dims, shapes[0])
    return [out]


def _updated(trace: Trace, eqn, value: Value, new: Value, at: Any, shape) -> Value:
    """A value of which some entries are replaced or added to."""
    name = eqn.primitive.name
    out = mixed([value, new, *at], shape)
    out.is_data = any(v.is_data for v in (value, new, *at))
    if value.is_weight and out.is_data:
        for key, view in value.of(Leaf):
            among_data(trace, eqn, key, view, name)
            out.views[Met(key.number, "scale")] = view
    elif not new.views or value.is_data:
        out.views = dict(value.views)
    if new.is_weight:
        for key, view in new.of(Leaf):
            if out.is_data:
                among_data(trace, eqn, key, view, name)
            else:
                trace.lose(key.number, name)
        if not out.is_data:
            trace.lose_all(value, name)
            out.is_data = True
    return out


@follows("gather")
def _gather(trace: Trace, eqn, ins, shapes):
    value, indices = ins
    trace.choose(ins, by_index=True)
    shape, numbers = shapes[0], eqn.params["dimension_numbers"]
    where = _where(numbers, eqn.params["slice_sizes"], value.shape, shape)
    sizes = eqn.params["slice_sizes"]
    cut = [d for d in numbers.start_index_map if sizes[d] != value.shape[d]]
    is_many = any(n > 1 for n in indices.shape[:-1])
    chosen = _chosen(value, indices, cut, numbers, shape)
    if value.is_weight and cut and (indices.is_data or is_many) and not chosen:
        return [_looked_up(trace, eqn, value, cut, shape, where)]

    def f(view: View) -> View:
        axes, dropped = empty(shape), []
        for d, parts in enumerate(view.axes):
            if d in where:
                axes[where[d]] = parts
            elif d in chosen and len(parts) == 1:
                some = parts[0]._replace(size=shape[chosen[d]], start=FREE)
                axes[chosen[d]] = (some,)
            else:
                dropped += known(parts)
        new = view.over(axes, dropped)
        is_more = any(shape[at] > value.shape[d] for d, at in chosen.items())
        return new.marked("repeated") if is_more else new

    out = trace.mapped(value, shape, f)
    out.is_data |= indices.is_data
    out.before |= indices.before
    if "eye" in value.marks and indices.is_data:
        out.views[Hot()] = along(where.values(), shape)
    if indices.is_data and trace.records:
        for key, view in value.of(Output):  # Outputs of one member, expert, relation.
            trace.uses[key.use].kept |= {part.axis for part in view.at(cut)}
    return [out]


def _chosen(value: Value, indices: Value, cut, numbers: Any, shape) -> dict[int, int]:
    """The axis of a parameter of which constant indices take entries.

    Indices in order, those of positions, and a grid of indices are a look-up.
    """
    outer = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    long = [d for d in outer if shape[d] > 1]
    if indices.is_data or "iota" in indices.marks or len(cut) != 1 or len(long) != 1:
        return {}
    return {cut[0]: long[0]}


def _where(numbers: Any, sizes, old, new) -> dict[int, int]:
    """The axis of the result for each axis of the operand that is taken whole."""
    batching = tuple(getattr(numbers, "operand_batching_dims", ()))
    gone = (*numbers.collapsed_slice_dims, *batching)
    kept = [d for d in range(len(old)) if d not in gone]
    pairs = zip(kept, numbers.offset_dims, strict=True)
    where = {d: at for d, at in pairs if sizes[d] == old[d]}
    outer = [d for d in range(len(new)) if d not in numbers.offset_dims]
    at = getattr(numbers, "start_indices_batching_dims", ())
    where.update((d, outer[i]) for d, i in zip(batching, at, strict=True))
    return where


def _looked_up(trace: Trace, eqn, value: Value, cut, shape, where) -> Value:
    """Rows that indices choose."""
    out = Value(shape, True, before=value.before)
    for key, view in value.of(Leaf):
        index = view.at(cut)
        if view.summed:
            _of_factors(trace, eqn, key.number, view, index)
            continue
        axes = empty(shape)
        for d, at in where.items():
            axes[at] = view.axes[d]
        if not index:
            parts = view.parts()
            trace.use(
                eqn, key.number, "elementwise", view, batch=parts, detail="gather"
            )
            continue
        rest = known(part for axis in axes for part in axis)
        number = trace.use(eqn, key.number, "lookup", view, inputs=index, outputs=rest)
        trace.puts_out(number, out)
        out.views[Rows(key.number)] = view.over(axes, index)
    return out


def _of_factors(trace: Trace, eqn, leaf: int, view: View, index: Any) -> None:
    """Rows of a product of parameters: of the first they are looked up."""
    if index:
        roles = {"inputs": index, "outputs": view.summed, "batch": view.indexed}
        trace.use(eqn, leaf, "lookup", view, **roles)
    elif view.parts():
        roles = {"inputs": view.summed, "outputs": view.parts(), "batch": view.indexed}
        trace.use(eqn, leaf, "product", view, detail="of rows", **roles)
    else:
        trace.lose(leaf, "a product of two parameters")
