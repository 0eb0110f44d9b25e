"""Dimension numbers read from how a model uses its parameters."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from optax_matrix._paths import named_leaves
from optax_matrix.matrices.leaves import leaves_in_tree
from optax_matrix.matrices.names import default_full_rule, default_rule
from optax_matrix.matrices.rules import PathRule, by_path
from optax_matrix.matrices.tables import table_of
from optax_matrix.matrices.use import (
    control as control,
    convolutions as convolutions,
    lookups as lookups,
    moves as moves,
    products as products,
    reductions as reductions,
)
from optax_matrix.matrices.use.constants import is_key
from optax_matrix.matrices.use.models import is_input, is_model, split
from optax_matrix.matrices.use.trace import Trace, of_parameter
from optax_matrix.matrices.use.verdicts import Verdict, verdicts
from optax_matrix.matrices.use.views import Value
from optax_matrix.matrices.view import MatrixDimensionNumbers

_OPEN = ("unclear", "not used")


class UnclearUseWarning(UserWarning):
    """The use of parameters does not tell what they are."""


class ChangedUseWarning(UserWarning):
    """A model uses parameters otherwise than the table says that was saved of it."""


@dataclasses.dataclass(frozen=True)
class _OfUse:
    """The rule ``of_leaf(path, leaf)`` of verdicts."""

    verdicts: tuple[Verdict, ...]
    otherwise: PathRule
    is_full: bool = False

    def __call__(self, path: str, leaf: Any) -> tuple[Any, str]:
        known = self._known
        verdict = known.get(path, known.get(f"params/{path}"))
        fits = verdict is not None and tuple(leaf.shape) == verdict.shape
        if verdict is None or not fits or verdict.kind in _OPEN:
            rule = self.otherwise
            of_leaf = rule.full if self.is_full and rule.full else rule.of_leaf
            return of_leaf(path, leaf)
        why = _why(verdict)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            return None, f"{why}; complex, hold its real and imaginary parts"
        is_chosen = verdict.kind == "matrix" or self.is_full
        return (verdict.numbers if is_chosen else None), why

    @functools.cached_property
    def _known(self) -> dict[str, Verdict]:
        return {verdict.path: verdict for verdict in self.verdicts}


def _why(verdict: Verdict) -> str:
    if verdict.kind == "table":
        return "an embedding by its use"
    if verdict.kind == "last layer":
        return "an output head by its use"
    return verdict.use + (f", {verdict.reason}" if verdict.reason else "")


@dataclasses.dataclass(frozen=True)
class UseRule(PathRule):
    """A rule with the verdicts that it consists of; `print` shows them as a table.

    Attributes:
        verdicts: What each parameter is by its use.
        numbers: Pairs of path and dimension numbers (or None), with what arguments and
            names say of parameters whose use does not tell.
    """

    verdicts: tuple[Verdict, ...] = ()
    numbers: tuple[tuple[str, Any], ...] = ()

    def table(self) -> dict[str, Any]:
        """What to save beside the state, so that a resumed run reads the same.

        It is a dict by path that JSON can hold; `by_use` and `by_path` take it as
        ``table``.
        """
        return table_of(dict(self.numbers))

    def question(self) -> str | None:
        """What the use does not tell, and how to say it; None if it tells all."""
        told = [p for name, p in self.patterns if name in ("numbers", "exclude")]
        told = [v.path for v in self.verdicts if any(p.search(v.path) for p in told)]
        known = {*told, *self.paths}
        asked = [v for v in self.verdicts if v.kind in _OPEN and v.path not in known]
        if not asked:
            return None
        of = dict(self.numbers)
        lines = [f"  {v.path} {v.shape}: {v.reason}" for v in asked]
        lines += ["Their names decide so far. Confirm or correct this by"]
        rows = [f"    {'^' + re.escape(v.path) + '$'!r}: {of[v.path]}," for v in asked]
        lines += ["  by_use(..., numbers={", *rows, "  })"]
        return "\n".join(["Their use does not tell what these parameters are:", *lines])

    def __str__(self) -> str:
        rows = [("leaf", "shape", "use", "verdict")]
        rows += [(v.path, str(v.shape), v.use, _shown(v)) for v in self.verdicts]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        line = lambda row: "  ".join(map(str.ljust, row, widths)).rstrip()
        return "\n".join(map(line, rows))


def _shown(verdict: Verdict) -> str:
    text = verdict.kind
    if verdict.kind == "matrix":
        text += f" {_short(verdict.numbers)}"
    if verdict.heads:
        text += f", {verdict.heads} heads"
    return f"{text}: {verdict.reason}" if verdict.reason else text


def _short(numbers: Any) -> str:
    text = f"({numbers.reduction_axis}, {numbers.output_axis}"
    for name in "output_sections", "reduction_sections", "layer_axis", "residual":
        value = getattr(numbers, name)
        if value != getattr(MatrixDimensionNumbers, name):
            text += f", {name}={value!r}"
    return text + ")"


def by_use(
    fn: Any,
    *args: Any,
    numbers: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
    otherwise: PathRule | None = None,
    **options: Any,
) -> UseRule:
    """Reads from a model which axes of its parameters are inputs and outputs.

    The function is traced with the shapes of its arguments; nothing is computed. The
    axes of each parameter are followed to where it meets data: products, convolutions,
    look-ups and operations by entry. Embeddings, last layers (nothing learned comes
    after them), routers (their outputs are ranked) and filters of one channel each are
    told by their use, too, and so are heads, layers of a scan, experts, fused sections
    and the side of a matrix that is on the residual stream.

    Args:
        fn: A function of parameters and inputs, such as a loss or ``model.apply``; or
            a model of Flax NNX or Equinox, which is called with the inputs.
        *args: Parameters (or a model of NNX or Equinox), unless ``fn`` is one, then
            inputs, as arrays or `jax.ShapeDtypeStruct`. Of parameters, arrays that are
            not floats and what NNX does not hold as ``nnx.Param`` count as constants.
        numbers: Dimension numbers (or None) by regular expression, as in `by_path`.
            They take precedence over the use.
        table: What ``table()`` of an earlier rule returned. It takes precedence over
            the use, so that a saved state still fits; where both differ, there is a
            `ChangedUseWarning`.
        otherwise: Rule for parameters whose use does not tell; None for the default
            rule.
        **options: Further arguments of ``fn``.

    Returns:
        A rule for the ``dimension_numbers`` argument of every recipe. `print` shows
        what each parameter is. It is static and hashable, and the same model gives an
        equal one. If the use of a parameter does not tell, an `UnclearUseWarning` asks.

    Raises:
        ValueError: If an argument has another type.

    Examples:
        >>> import jax.numpy as jnp
        >>> params = {"up": jnp.ones((8, 4)), "down": jnp.ones((3, 8))}
        >>> loss = lambda p, x: (p["down"] @ jnp.tanh(p["up"] @ x)).sum()
        >>> print(by_use(loss, params, jnp.ones((4, 2))))
        leaf  shape   use                 verdict
        down  (3, 8)  product (1) to (0)  last layer: nothing learned comes after
        up    (8, 4)  product (1) to (0)  matrix (1, 0)
    """
    fn, params, inputs = _arguments(fn, args)
    names = (
        PathRule(default_rule, default_full_rule) if otherwise is None else otherwise
    )
    learned, found = _read(fn, params, inputs, options)
    used = _OfUse(found, names)
    used = PathRule(used, dataclasses.replace(used, is_full=True), names.patterns)
    rule = by_path(numbers=numbers, table=table, otherwise=used)
    leaves = leaves_in_tree(learned, named_leaves(learned))
    read = lambda rule: tuple((p, rule.of_leaf(p, x)[0]) for p, x in leaves.items())
    if table is not None:
        _warn_of_changes(
            dict(read(by_path(numbers=numbers, otherwise=used))), rule, leaves
        )
    fields = (rule.of_leaf, rule.full, rule.patterns, rule.paths)
    out = UseRule(*fields, verdicts=found, numbers=read(rule))
    if question := out.question():
        warnings.warn(question, UnclearUseWarning, stacklevel=2)
    return out


def _warn_of_changes(new: Mapping[str, Any], rule: PathRule, leaves: Any) -> None:
    old = {path: rule.of_leaf(path, leaf)[0] for path, leaf in leaves.items()}
    changed = [f"{p} (now {new[p]})" for p in old if old[p] != new[p]]
    if changed:
        shown = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        warnings.warn(
            f"The model uses parameters otherwise than `table` says: {shown}. The "
            "table counts; without it a saved state would not fit.",
            ChangedUseWarning,
            stacklevel=3,
        )


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


def _read(fn: Any, params: Any, inputs: Any, options: Any):
    """The tree of what is learned, and the verdicts on it."""
    learned, rest, join = split(params)
    flat, structure = jax.tree.flatten((inputs, options))
    are_inputs = [is_input(x) for x in flat]

    def run(learned, rest, arrays):
        found = iter(arrays)
        pairs = zip(flat, are_inputs, strict=True)
        all_ = [next(found) if is_one else x for x, is_one in pairs]
        inputs, options = structure.unflatten(all_)
        return fn(join(learned, rest), *inputs, **options)

    arrays = [x for x, is_one in zip(flat, are_inputs, strict=True) if is_one]
    closed = jax.make_jaxpr(run)(learned, rest, arrays)
    jaxpr = closed.jaxpr
    named = named_leaves(learned)
    trace = Trace([(path, tuple(leaf.shape)) for path, leaf in named.items()])
    first = len(jaxpr.invars) - len(jax.tree.leaves(arrays))
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
