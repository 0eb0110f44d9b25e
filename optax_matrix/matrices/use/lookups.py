"""Look-ups of rows by indices that are data, and slices at offsets."""

from typing import Any

from optax_matrix.matrices.use.moves import among_data, sliced
from optax_matrix.matrices.use.trace import Trace, follows, mixed
from optax_matrix.matrices.use.views import (
    Leaf,
    Rows,
    Value,
    View,
    empty,
    known,
)


@follows("dynamic_slice")
def _dynamic_slice(trace: Trace, eqn, ins, shapes):
    value, *indices = ins
    shape = shapes[0]
    pairs = zip(value.shape, shape, strict=True)
    cut = [d for d, (n, m) in enumerate(pairs) if n != m]
    if value.is_weight and any(indices[d].is_data for d in cut):
        where = {d: d for d in range(len(shape)) if d not in cut}
        return [_looked_up(trace, eqn, value, cut, shape, where)]
    starts = [getattr(v, "val", None) for v in eqn.invars[1:]]
    starts = [None if start is None else int(start) for start in starts]
    return [sliced(trace, value, shape, starts)]


@follows("dynamic_update_slice")
def _dynamic_update_slice(trace: Trace, eqn, ins, shapes):
    name = eqn.primitive.name
    for v in ins[:2]:
        if not any(w.is_data for w in ins):
            trace.lose_all(v, name)
        elif v.is_weight:
            for key, view in v.views.items():
                among_data(trace, eqn, key, view, name)
    return [mixed(ins, shapes[0])]


@follows("gather")
def _gather(trace: Trace, eqn, ins, shapes):
    value, indices = ins
    shape, numbers = shapes[0], eqn.params["dimension_numbers"]
    where = _where(numbers, eqn.params["slice_sizes"], value.shape, shape)
    sizes = eqn.params["slice_sizes"]
    cut = [d for d in numbers.start_index_map if sizes[d] != value.shape[d]]
    is_many = any(n > 1 for n in indices.shape[:-1])
    if value.is_weight and cut and (indices.is_data or is_many):
        return [_looked_up(trace, eqn, value, cut, shape, where)]

    def f(view: View) -> View:
        axes, dropped = empty(shape), []
        for d, parts in enumerate(view.axes):
            if d in where:
                axes[where[d]] = parts
            else:
                dropped += known(parts)
        return view.over(axes, dropped)

    out = trace.mapped(value, shape, f)
    out.is_data |= indices.is_data
    out.before |= indices.before
    return [out]


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
