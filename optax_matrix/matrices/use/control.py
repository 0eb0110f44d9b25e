"""Loops, branches, and programs per device."""

import dataclasses
from typing import Any

from optax_matrix.matrices.use.moves import among_data
from optax_matrix.matrices.use.trace import Trace, follows, opened
from optax_matrix.matrices.use.views import (
    Leaf,
    Met,
    Output,
    Part,
    Value,
    free,
    known,
    richer,
)

# Rounds in which it settles what of a carry is data; uses are recorded in the last two.
_SETTLING, _ROUNDS = 2, 4


@follows("scan")
def _scan(trace: Trace, eqn, ins, shapes):
    constants, carry, arrays = _groups(eqn, ins)
    slices, n = [_slice_of(value) for value in arrays], len(carry)
    jaxpr = eqn.params["jaxpr"]
    carry, outs = _loop(trace, eqn, jaxpr, constants, carry, slices)
    stacks = zip(outs[n:], shapes[n:], strict=True)
    return [*outs[:n], *(_stack_of(v, shape) for v, shape in stacks)]


def _groups(eqn, ins):
    """Constants, carry, and what is gone through."""
    if "num_consts" not in eqn.params:  # JAX >= 0.12.
        return map(list, eqn.params["ft_in"].update(ins).unpack())
    first = eqn.params["num_consts"]
    last = first + eqn.params["num_carry"]
    return ins[:first], ins[first:last], ins[last:]


def _slice_of(value: Value) -> Value:
    """One step's slice of an array that a scan goes through."""
    views = {}
    for key, view in value.views.items():
        passed = tuple(known(view.axes[0]))
        if isinstance(key, Leaf):
            new = view.over(view.axes[1:], passed)
            views[key] = dataclasses.replace(new, layers=(*view.layers, *passed))
        elif isinstance(key, Output) and not passed:
            views[key] = view.over(view.axes[1:])
    return _like(value, value.shape[1:], views)


def _like(value: Value, shape: tuple[int, ...], views: dict[Any, Any]) -> Value:
    """A value with what is known of another one but its axes."""
    marks, still = value.marks - {"carry"}, frozenset()
    more = {"views": views, "marks": marks, "still": still}
    return dataclasses.replace(value, shape=shape, **more)


def _stack_of(value: Value, shape: tuple[int, ...]) -> Value:
    """What a scan stacks of a result of its steps."""
    views = {}
    for key, view in value.views.items():
        again = [
            p for p in view.indexed if isinstance(key, Leaf) and p.size == shape[0]
        ]
        again = again[-1:]
        indexed = tuple(p for p in view.indexed if p not in again)
        axes = (tuple(again) or free(shape[0]), *view.axes)
        views[key] = dataclasses.replace(view, axes=axes, indexed=indexed)
    return _like(value, shape, views)


def _loop(trace: Trace, eqn, jaxpr, constants, carry, slices):
    """The carry and the results of a loop, of which any step may be the last."""
    carry, outs = list(carry), []
    for step in range(_ROUNDS):
        args = [*constants, *map(_entering, carry), *slices]
        run = lambda args=args: trace.call(eqn, jaxpr, args)
        outs = trace.unrecorded(run) if step < _SETTLING else run()
        for i, old in enumerate(carry):
            carry[i] = _carried(trace, eqn, old, outs[i])
    return carry, outs


def _entering(value: Value) -> Value:
    """A carry as the body gets it."""
    marks = value.marks | {"carry"} if value.is_data else value.marks
    return dataclasses.replace(value, marks=marks)


def _carried(trace: Trace, eqn, old: Value, new: Value) -> Value:
    views, is_data = _kept(old, new), old.is_data or new.is_data
    is_lost = any(key not in views for v in (old, new) for key, _ in v.of(Leaf))
    if old.is_weight and is_data:
        views = {}
        for key, view in old.of(Leaf):
            among_data(trace, eqn, key, view, "first carry")
            views[Met(key.number, "start")] = view
    elif old.is_weight and is_lost:
        trace.lose_all(old, eqn.primitive.name)
    is_data |= bool(old.views or new.views) and not views
    marks = old.marks | (new.marks & {"carry"})
    out = Value(old.shape, is_data, views, old.before | new.before, marks=marks)
    out.ranks = old.ranks | new.ranks
    signals = {
        None if x is None else trace.signals.root(x) for x in (old.signal, new.signal)
    }
    if len(signals) == 1:  # A residual stream through layers.
        out.signal = signals.pop()
    out.read = old.read | new.read
    return out


def _kept(old: Value, new: Value) -> dict[Any, Any]:
    """The views that are the same after a step, whatever has happened to them."""
    return {
        key: view.marked(*new.views[key].marks)
        for key, view in old.views.items()
        if key in new.views
        and (view.axes, view.summed) == (new.views[key].axes, new.views[key].summed)
        and old.is_data == new.is_data
    }


@follows("while")
def _while(trace: Trace, eqn, ins, shapes):
    first = eqn.params["cond_nconsts"]
    last = first + eqn.params["body_nconsts"]
    body = eqn.params["body_jaxpr"]
    return list(_loop(trace, eqn, body, ins[first:last], ins[last:], [])[1])


@follows("cond")
def _cond(trace: Trace, eqn, ins, shapes):
    index, *args = ins
    trace.choose(ins, by_index=True)
    branches = eqn.params["branches"]
    first, *others = (trace.call(eqn, branch, args) for branch in branches)
    outs = [dataclasses.replace(v, views=dict(v.views)) for v in first]
    for found in others:
        for a, b in zip(outs, found, strict=True):
            a.is_data |= b.is_data or index.is_data
            a.before |= b.before
            a.ranks |= b.ranks
            a.read |= b.read
            a.signal = a.signal if a.signal == b.signal else None
            for key, view in b.views.items():
                a.views[key] = richer(a.views.get(key), view)
    for a in outs:
        a.before |= index.before
        if a.is_data:
            leaves = dict(a.of(Leaf))
            a.views = {k: v for k, v in a.views.items() if k not in leaves}
            for key, view in leaves.items():
                a.views[Met(key.number, "scale")] = view
    return outs


@follows("shard_map")
def _shard_map(trace: Trace, eqn, ins, shapes):
    jaxpr, _ = opened(eqn.params["jaxpr"])
    inner = [tuple(v.aval.shape) for v in jaxpr.invars]
    local = [_resized(v, shape) for v, shape in zip(ins, inner, strict=True)]
    outs = trace.call(eqn, eqn.params["jaxpr"], local)
    return [_resized(v, shape) for v, shape in zip(outs, shapes, strict=True)]


_ALONG = {
    "all_gather": "all_gather_dimension",
    "all_gather_invariant": "all_gather_dimension",
    "all_gather_reduced": "all_gather_dimension",
    "reduce_scatter": "scatter_dimension",
    "unreduced_reduce_scatter": "scatter_dimension",
}


@follows(*_ALONG, "psum", "psum_invariant", "unreduced_psum", "ppermute")
@follows("pmax", "pmin", "all_to_all", "pbroadcast")
def _collective(trace: Trace, eqn, ins, shapes):
    name = eqn.primitive.name
    if name == "all_to_all":
        first, last = eqn.params["split_axis"], eqn.params["concat_axis"]
    else:
        first = last = eqn.params.get(_ALONG.get(name, ""), 0)

    def alike(value: Value, shape: tuple[int, ...]) -> Value:
        n = len(value.shape)
        if n > len(shape) or (n == len(shape) and first != last and _is_untiled(eqn)):
            value = _without(value, first)
        if len(value.shape) < len(shape):
            value = _with(value, last, shape[last])
        return _resized(value, shape)

    return [alike(v, shape) for v, shape in zip(ins, shapes, strict=True)]


def _is_untiled(eqn: Any) -> bool:
    return not eqn.params.get("tiled", True)


def _without(value: Value, axis: int) -> Value:
    cut = lambda x: (*x[:axis], *x[axis + 1 :])
    views = {
        k: v.over(cut(v.axes), known(v.axes[axis])) for k, v in value.views.items()
    }
    return dataclasses.replace(value, shape=cut(value.shape), views=views)


def _with(value: Value, axis: int, size: int) -> Value:
    put = lambda x, new: (*x[:axis], new, *x[axis:])
    views = {k: v.over(put(v.axes, free(size))) for k, v in value.views.items()}
    return dataclasses.replace(value, shape=put(value.shape, size), views=views)


def _resized(value: Value, shape: tuple[int, ...]) -> Value:
    """The same axes with other numbers of entries: those of one device."""
    if value.shape == shape:
        return value
    views: dict[Any, Any] = {}
    for key, view in value.views.items():
        axes = []
        for n, m, parts in zip(value.shape, shape, view.axes, strict=True):
            if n != m and len(parts) == 1:
                parts = (Part(parts[0].axis, m),)
            axes.append(parts)
        views[key] = view.over(axes)
    return dataclasses.replace(value, shape=shape, views=views)
