"""What is believed of each parameter: its axes' names, its use, its layer, its name."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from optax_matrix.matrices._infer import axes_told
from optax_matrix.matrices._reasons import ByUse
from optax_matrix.matrices.names import Guess
from optax_matrix.matrices.rules import Mode, PathRule
from optax_matrix.matrices.tables import canonical, fits, place_in, refuse_leaf
from optax_matrix.matrices.use.verdicts import Verdict
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.matrices.wider import heads_as_matrices

MODES: tuple[Mode, ...] = ("inner", "head", "full")
_OPEN = ("unclear", "not used")
_REMEDY = (
    "pass by_use the parameters that the optimizer gets, or a rule for others as "
    "`otherwise`"
)


class Answer(NamedTuple):
    """What is believed of one parameter.

    Attributes:
        shape: Its shape.
        numbers: Its dimension numbers, or None, in each of the `MODES`.
        why: The reason.
        question: What is open about it, or None.
    """

    shape: tuple[int, ...]
    numbers: tuple[Any, ...]
    why: str
    question: str | None = None


@dataclasses.dataclass(frozen=True)
class OfUse:
    """The rule ``of_leaf(path, leaf)`` of answers.

    Attributes:
        answers: The answers, by path.
        otherwise: The rule for other parameters; None if there must be none.
        mode: Which embeddings and heads are matrices.
    """

    answers: tuple[tuple[str, Answer], ...]
    otherwise: PathRule | None
    mode: Mode = "inner"

    def __call__(self, path: str, leaf: Any) -> tuple[Any, str]:
        """The dimension numbers of a leaf, or None, and the reason."""
        place = place_in(self.known, path)
        found = None if place is None else self.known[place]
        if found is not None and fits(leaf.shape, found.shape):
            return found.numbers[MODES.index(self.mode)], found.why
        if self.otherwise is not None:
            return self.otherwise.among(self.mode)(path, leaf)
        where = "What `by_use` was given"
        refuse_leaf(where, path, leaf, found and found.shape, _REMEDY)
        return None, "not a parameter that `by_use` was given"

    @functools.cached_property
    def known(self) -> Mapping[str, Answer]:
        """The answers as a dict."""
        return dict(self.answers)


def answers(
    learned: Any, told: Mapping[str, Any], verdicts: tuple[Verdict, ...], rest: PathRule
) -> Iterator[tuple[str, Answer]]:
    """The answer on each leaf of `leaves_in_tree`, by path."""
    of_axes = axes_told(learned)
    of_rest = [rest.of_leaf, heads_as_matrices(rest).of_leaf, rest.among("full")]
    for verdict in verdicts:
        leaf = told[verdict.path]
        yield verdict.path, _Believed(verdict, leaf, of_axes, of_rest).answer()


@dataclasses.dataclass
class _Believed:
    verdict: Verdict
    leaf: Any
    of_axes: Callable[[str, Any, bool], Any]
    of_rest: list[Callable[[str, Any], Any]]

    def answer(self) -> Answer:
        verdict, path, shape = self.verdict, self.verdict.path, self.verdict.shape
        if jnp.issubdtype(self.leaf.dtype, jnp.complexfloating):
            why = f"{_said(verdict)}; complex, hold its real and imaginary parts"
            return self._answer([None] * 3, why)
        named = self.of_axes(path, self.leaf, False)
        if named is not None:
            return self._by_axes(named)
        if verdict.kind in _OPEN:
            found = [of_leaf(path, self.leaf) for of_leaf in self.of_rest]
            why = found[0][1]
            is_guess = isinstance(why, Guess) and getattr(self.leaf, "layer", 0) is None
            asks = verdict.reason if is_guess and _may_be_matrix(shape) else None
            known = [canonical(shape, numbers, path) for numbers, _ in found]
            return Answer(shape, tuple(known), f"{why}, not by its use", asks)
        return self._answer(self._of_modes(), _said(verdict), self._other_type())

    def _answer(self, numbers: Any, why: str, question: str | None = None) -> Answer:
        reason = ByUse(why, self.verdict.kind, self.verdict.heads)
        return Answer(self.verdict.shape, tuple(numbers), reason, question)

    def _of_modes(self) -> list[Any]:
        first = {"matrix": 0, "last layer": 1, "table": 2}.get(self.verdict.kind, 3)
        return [self.verdict.numbers if i >= first else None for i in range(3)]

    def _other_type(self) -> str | None:
        """Whether the type of the layer has other axes than the use."""
        typed = (getattr(self.leaf, "layer", None) or (None, ""))[0]
        used = self.verdict.numbers
        if typed is None or used is None or self.verdict.kind != "matrix":
            return None
        typed = canonical(self.verdict.shape, typed)
        if _sides(typed, self.verdict.shape) == _sides(used, self.verdict.shape):
            return None
        return f"its layer says {short(typed)}, its use {short(used)}"

    def _by_axes(self, named: tuple[Any, str]) -> Answer:
        """Axis names, with what they leave open by the use."""
        verdict, shape, path = self.verdict, self.verdict.shape, self.verdict.path
        numbers, why = canonical(shape, named[0], path), named[1]
        full = self.of_axes(path, self.leaf, True)
        full = None if full is None else canonical(shape, full[0], path)
        if verdict.kind in _OPEN:
            return Answer(shape, (numbers, numbers, full), why)
        used = self._of_modes()
        merged = _merged(numbers, used[0], shape)
        both = [merged, used[1] if numbers is None else merged]
        both.append(_merged(full, used[2], shape) or full or used[2])
        if merged is not None or (numbers is None and used[0] is None):
            return self._answer(both, f"{why}; {_said(verdict)}")
        says = lambda x: "no matrix" if x is None else short(x)
        kind = verdict.kind if used[0] is None else short(used[0])
        asks = f"{why} say {says(numbers)}, its use says {kind}"
        asks = asks if _may_be_matrix(shape) else None
        return self._answer([numbers, numbers, full], f"{why}, not its use", asks)


def _merged(named: Any, used: Any, shape: tuple[int, ...]) -> Any:
    """Numbers of both, None where they differ."""
    if named is None or used is None or _sides(named, shape) != _sides(used, shape):
        return None
    if named.residual and used.residual and named.residual != used.residual:
        return None
    facts = {"residual": named.residual or used.residual}
    layers = named.layer_axis
    facts["layer_axis"] = used.layer_axis if layers is None else layers
    is_whole = used.output_sections == used.reduction_sections == 1
    return dataclasses.replace(named if is_whole else used, **facts)


def _sides(numbers: Any, shape: tuple[int, ...]) -> list[set[int]]:
    """Axes of inputs and outputs; those of length one are on either side."""
    of = lambda x: {a for a in (x if isinstance(x, tuple) else (x,)) if shape[a] > 1}
    return [of(numbers.reduction_axis), of(numbers.output_axis)]


def _may_be_matrix(shape: tuple[int, ...]) -> bool:
    return sum(n > 1 for n in shape) > 1


def _said(verdict: Verdict) -> str:
    reason = f", {verdict.reason}" if verdict.reason else ""
    return f"{verdict.kind}: {verdict.use}{reason}"


def short(numbers: Any) -> str:
    """Dimension numbers as arguments, in which usual ones are left out."""
    text = f"({numbers.reduction_axis}, {numbers.output_axis}"
    for name in "output_sections", "reduction_sections", "residual", "layer_axis":
        value = getattr(numbers, name)
        if value not in (getattr(MatrixDimensionNumbers, name), ()):
            text += f", {name}={value!r}"
    return text + ")"
