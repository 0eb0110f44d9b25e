"""Reading a function: its jaxpr, and the verdicts on its parameters."""

from collections.abc import Mapping
from typing import Any

import jax

from optax_matrix._paths import named_leaves
from optax_matrix.matrices.use import (
    control as control,
    convolutions as convolutions,
    lookups as lookups,
    moves as moves,
    products as products,
    reductions as reductions,
)
from optax_matrix.matrices.use.constants import is_key
from optax_matrix.matrices.use.models import is_model, split, split_inputs
from optax_matrix.matrices.use.trace import Trace, of_parameter
from optax_matrix.matrices.use.verdicts import Verdict, verdicts
from optax_matrix.matrices.use.views import Value


def read(
    fn: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[Any, tuple[Verdict, ...]]:
    """The tree of what is learned, and the verdicts on it.

    Raises:
        ValueError: As `by_use`.
    """
    fn, params, inputs = _arguments(fn, args)
    learned, rest, join = split(params)
    named = named_leaves(learned)
    if not named or len(named) != len(jax.tree.leaves(learned)):
        raise ValueError(
            "`params` must hold arrays of floats, each with a path of its own, got "
            f"{len(jax.tree.leaves(learned))} with {len(named)} paths; pass the "
            "parameters behind `fn`, and rename keys that contain '/'."
        )
    data, state, join_inputs = split_inputs((inputs, dict(options)))
    if not data:
        raise ValueError(
            "`by_use` must get the inputs of `fn` as arrays, got none; pass the batch "
            "as an argument, as in by_use(loss, params, batch), since arrays that a "
            "function closes over are constants."
        )

    def run(learned, rest, state, data):
        inputs, options = join_inputs(data, state)
        return fn(join(learned, rest), *inputs, **options)

    closed = _traced(run, learned, rest, state, data)
    jaxpr = closed.jaxpr
    trace = Trace([(path, tuple(leaf.shape)) for path, leaf in named.items()])
    first = len(jaxpr.invars) - len(data)
    values = []
    for i, v in enumerate(jaxpr.invars):
        shape = tuple(v.aval.shape)
        if i < len(named):
            values.append(of_parameter(shape, i))
        elif i < first:
            values.append(Value(shape))  # State that is not learned.
        elif is_key(v.aval.dtype):
            values.append(Value(shape, marks=frozenset(["noise"])))
        else:
            values.append(Value(shape, True, signal=trace.signals.new()))
    return learned, verdicts(trace, trace.run(closed, values))


def _arguments(fn: Any, args: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...]]:
    if is_model(fn):
        return (lambda model, *inputs, **options: model(*inputs, **options)), fn, args
    if not callable(fn) or not args:
        raise ValueError(
            "`fn` must be a function, followed by parameters and inputs, or a model of "
            f"NNX or Equinox, got {type(fn).__name__} and {len(args)} other arguments; "
            "call by_use(loss, params, batch) or by_use(model, inputs)."
        )
    return fn, args[0], args[1:]


def _traced(run: Any, *args: Any) -> Any:
    try:
        return jax.make_jaxpr(run)(*args)
    except Exception as error:
        if type(error).__name__ != "TraceContextError":
            raise
        raise ValueError(
            "`fn` must not change a state of NNX that it closes over; pass the model "
            "itself, as in by_use(loss, model, batch), or the state as an argument."
        ) from error
