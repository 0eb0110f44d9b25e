"""Convolutions, of every layout, with groups."""

from optax_matrix.matrices.use.mixtures import has_free
from optax_matrix.matrices.use.trace import Trace, follows, mixed
from optax_matrix.matrices.use.uses import INDEXED, MET
from optax_matrix.matrices.use.views import Leaf, Met, Output, Rows, View, empty, known


@follows("conv_general_dilated")
def _convolution(trace: Trace, eqn, ins, shapes):
    trace.choose(ins)
    x, w = ins
    out = mixed(ins, shapes[0])
    if x.is_weight:
        for v in ins:
            trace.lose_all(v, eqn.primitive.name)
        return [out]
    numbers = eqn.params["dimension_numbers"]
    to, of, *spatial = numbers.rhs_spec
    groups = eqn.params["feature_group_count"]
    for key, view in w.of(Output):  # Mixed or made by a network: which side is which?
        if trace.records and view.at([of, *spatial]) + view.at([to]):
            trace.uses[key.use].selected.add("contracted")
    for key, view in w.views.items():
        if not isinstance(key, Leaf | Rows | Met):
            continue
        leaf = key.number if isinstance(key, Leaf) else key.leaf
        outputs, batch, left = _grouped(view.axes[to], groups)
        roles = {"inputs": view.at([of, *spatial]), "outputs": outputs}
        roles["batch"] = [*view.indexed, *batch]
        if "mixed" in view.marks or (isinstance(key, Met) and has_free(w)):
            trace.lose(leaf, "a convolution " + MET)
            continue
        detail = {Met: MET, Rows: INDEXED}.get(type(key), "")
        if left > 1 and w.shape[of] == 1:
            detail = "of one channel each"
        number = trace.use(eqn, leaf, "convolution", view, x, detail=detail, **roles)
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
    return known(outputs), known(batch), groups
