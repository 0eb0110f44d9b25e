"""Dimension numbers read from how a model uses its parameters."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from optax_matrix._paths import named_leaves
from optax_matrix._printed import Printed
from optax_matrix.matrices.leaves import leaves_in_tree
from optax_matrix.matrices.names import default_full_rule, default_rule
from optax_matrix.matrices.rules import PathRule, by_path, refuse_missing
from optax_matrix.matrices.tables import canonical, place_in, table_of
from optax_matrix.matrices.use.answers import Answer, OfUse, answers, short
from optax_matrix.matrices.use.question import (
    ChangedUseWarning,
    Open,
    UnclearUseWarning,
    changes,
    question,
)
from optax_matrix.matrices.use.reading import read
from optax_matrix.matrices.use.verdicts import Verdict


@dataclasses.dataclass(frozen=True)
class UseRule(Printed, PathRule):
    """The rule of `by_use`, with what it consists of; `print` shows it as a table.

    Attributes:
        verdicts: What each parameter is by its use.
        numbers: Pairs of path and dimension numbers (or None), with what arguments and
            names say of parameters whose use does not tell.
        asked: What the use does not tell, and nothing else does.
    """

    verdicts: tuple[Verdict, ...] = ()
    numbers: tuple[tuple[str, Any], ...] = ()
    asked: tuple[Open, ...] = ()

    def table(self) -> dict[str, Any]:
        """What to save beside the state, so that a resumed run reads the same.

        It is a dict by path that JSON can hold; `by_use` and `by_path` take it as
        ``table``.
        """
        shapes = {verdict.path: verdict.shape for verdict in self.verdicts}
        return table_of({path: (shapes[path], x) for path, x in self.numbers})

    def question(self) -> str | None:
        """What the use does not tell, and how to say it; None if it tells all."""
        return question(self.asked, [path for path, _ in self.numbers])

    def __str__(self) -> str:
        rows = [("leaf", "shape", "use", "verdict")]
        of = dict(self.numbers)
        rows += [
            (v.path, str(v.shape), v.use, _shown(v, of[v.path])) for v in self.verdicts
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        line = lambda row: "  ".join(map(str.ljust, row, widths)).rstrip()
        return "\n".join(map(line, rows))


def _shown(verdict: Verdict, numbers: Any) -> str:
    used = verdict.numbers if verdict.kind == "matrix" else None
    text = verdict.kind if used is None else f"{verdict.kind} {short(used)}"
    if verdict.heads:
        text += f", {verdict.heads} heads"
    if verdict.reason:
        text += f": {verdict.reason}"
    says = lambda x: "no matrix" if x is None else short(x)
    if says(numbers) != says(used):
        text += f" -> {says(numbers)}"
    return text


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
    trace follows each parameter to the operation that combines it with data: a product,
    a convolution, a look-up or an operation by entry. This shows axes of inputs and
    outputs, embeddings, last layers (nothing learned comes after them), routers (their
    outputs are ranked) and filters of one channel each. It also shows heads, layers of
    a scan, experts, fused sections and the side of a matrix on the residual stream.

    If sources disagree, the first of these counts: `numbers`, `table`, the logical
    names of axes (as `infer` reads them), the forward pass, the type of a layer, the
    names of leaves. An `UnclearUseWarning` lists all leaves for which the forward pass
    is not enough, or contradicts the axis names or the type of the layer. It contains
    the argument to paste.

    Args:
        fn: A function of parameters and inputs, such as a loss or ``model.apply``; or
            a model of Flax NNX or Equinox, which is called with the inputs.
        *args: Parameters (or a model of NNX or Equinox), unless ``fn`` is one, then
            inputs, as arrays or `jax.ShapeDtypeStruct`. Some arrays are constants, not
            parameters: arrays that are not floats, variables of NNX that are not an
            ``nnx.Param``, the collections ``batch_stats``, ``cache`` and
            ``intermediates`` of Linen, and an ``nnx.State`` among the inputs. Python
            numbers are constants, too, and are passed unchanged.
        numbers: Dimension numbers (or None) by regular expression, as in `by_path`.
        table: What ``table()`` of an earlier rule returned, so that a saved state still
            fits. If the forward pass disagrees with it, there is a `ChangedUseWarning`.
        otherwise: Rule for parameters that the forward pass does not show, and for
            those that were not among the arguments. None is the default rule for the
            former, and an error for the latter, unless they are vectors.
        **options: Further arguments of ``fn``.

    Returns:
        A rule for the ``dimension_numbers`` argument of every recipe. `print` shows
        what each parameter is. It is static and hashable, and the same model gives an
        equal one, inside of `jax.jit` and on shapes, too.

    Raises:
        ValueError: If an argument has another type, the function gets no array besides
            parameters, or the table names a parameter that is not there.

    Examples:
        >>> import jax.numpy as jnp
        >>> params = {"up": jnp.ones((8, 4)), "down": jnp.ones((3, 8))}
        >>> loss = lambda p, x: (p["down"] @ jnp.tanh(p["up"] @ x)).sum()
        >>> print(by_use(loss, params, jnp.ones((4, 2))))
        leaf  shape   use                 verdict
        down  (3, 8)  product (1) to (0)  last layer: nothing learned comes after
        up    (8, 4)  product (1) to (0)  matrix (1, 0)
    """
    learned, found = read(fn, args, options)
    told = leaves_in_tree(learned, named_leaves(learned))
    names = PathRule(default_rule, default_full_rule)
    rest = names if otherwise is None else otherwise
    believed = dict(answers(learned, told, found, rest))
    used = _rule_of(believed, otherwise, rest)
    rule = by_path(numbers=numbers, table=table, otherwise=used)
    refuse_missing(rule.paths, told)
    given = by_path(numbers=numbers, table=table, otherwise=PathRule(_open))
    now = _numbers(rule, told)
    asked = [
        Open(path, leaf.shape, question, now[path])
        for path, leaf in told.items()
        if (question := believed[path].question)
        and given.of_leaf(path, leaf)[1] == _OPEN
    ]
    out = UseRule(
        *(rule.of_leaf, rule.full, rule.patterns, rule.paths, rule.with_head),
        verdicts=found,
        numbers=tuple(now.items()),
        asked=tuple(asked),
    )
    if text := out.question():
        warnings.warn(text, UnclearUseWarning, stacklevel=2)
    if table is not None:
        rows = {place_in(told, path) for path in table}
        old = {path: x for path, x in now.items() if path in rows}
        new = _numbers(by_path(numbers=numbers, otherwise=used), told)
        if text := changes(new, old):
            warnings.warn(text, ChangedUseWarning, stacklevel=2)
    return out


_OPEN = "not told"


def _open(path: str, leaf: Any) -> tuple[None, str]:
    """The rule by which nothing is told."""
    del path, leaf
    return None, _OPEN


def _numbers(rule: PathRule, told: Mapping[str, Any]) -> dict[str, Any]:
    """What a rule says of all leaves of a tree, in one form."""
    said = {path: rule.of_leaf(path, leaf)[0] for path, leaf in told.items()}
    return {path: canonical(told[path].shape, x, path) for path, x in said.items()}


def _rule_of(
    believed: Mapping[str, Answer], otherwise: PathRule | None, rest: PathRule
) -> PathRule:
    inner = OfUse(tuple(believed.items()), otherwise)
    head, full = (dataclasses.replace(inner, mode=mode) for mode in ("head", "full"))
    return PathRule(inner, full, rest.patterns, rest.paths, head)
