"""What the arguments of a factory may be, declared once, in the signature.

``b1: Decay = 0.9`` is the whole declaration of an argument: a type for readers and type
checkers, and a rule that `checked` enforces when the factory is called. Literals,
flags and optional arguments need nothing more than their annotation. A violation is a
`ValueError` that gives the argument, the rule, the value and what to do.

Tracers pass: their values are not known. Scalars of NumPy and JAX count as numbers.
"""

import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from typing_extensions import TypeAliasType

from optax_matrix._arguments._functions import (
    KERNELS as KERNELS,
    check_alike,
    injectable,
    plain,
)
from optax_matrix._arguments._numbers import (
    check_at_least_one,
    check_bound,
    check_decay,
    check_not_negative,
    check_not_negative_int,
    check_positive,
    check_positive_int,
    check_rank,
    check_rate,
)

P = ParamSpec("P")
T = TypeVar("T")

# Words of optax's for arguments that have other names here.
_SYNONYMS = {
    "mask": "weight_decay_mask",
    "beta": "b1",
    "ns_coeffs": "polar",
    "ns_steps": "polar",
    "muon_weight_dimension_numbers": "dimension_numbers",
    "adam_b1": "other",
    "adam_b2": "other",
    "adam_learning_rate": "other_learning_rate",
    "adam_weight_decay": "other_weight_decay",
}


def checked(factory: Callable[P, T]) -> Callable[P, T]:
    """Checks the arguments of a factory against its annotations.

    >>> @checked
    ... def average(decay: Decay, mode: Literal["sum", "mean"] = "sum"):
    ...     return decay, mode
    >>> average(2.0)
    Traceback (most recent call last):
    ValueError: `decay` must be in [0, 1), got 2.0; pass another number.
    """
    check = Checker(factory.__name__, inspect.signature(factory, eval_str=True))

    @functools.wraps(factory)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = check(args, kwargs)
        return factory(*bound.args, **bound.kwargs)

    shown: Any = run
    shown.__signature__ = injectable(check.signature, is_number)
    return run


class Checker:
    """Binds the arguments of a call to a signature and checks them."""

    def __init__(self, name: str, signature: inspect.Signature):
        self.name = name
        self.signature = signature
        parameters = signature.parameters.items()
        self.rules = {key: _rule(p.annotation) for key, p in parameters}
        defaults = {key: plain(key, p.default) for key, p in parameters}
        self.kernels = {
            key: defaults[key]
            for key, p in parameters
            if inspect.isroutine(defaults[key]) and _is_kernel(p.annotation)
        }

    def __call__(self, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """The arguments of a call, defaults included; kernels as functions."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}; {self._hint(kwargs)}") from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if isinstance(value, str | np.generic):
                bound.arguments[name] = plain(name, value)
        for name, value in bound.arguments.items():
            self.rules[name](name, value)
            if name in self.kernels:
                check_alike(name, value, self.kernels[name])
        return bound

    def _hint(self, kwargs: Collection[str]) -> str:
        """The argument that an unknown keyword resembles, or all there are."""
        known = list(self.signature.parameters)
        for name in set(kwargs) - set(known):
            if _SYNONYMS.get(name) in known:
                return f"here `{name}` is called `{_SYNONYMS[name]}`."
            if close := difflib.get_close_matches(name, known, n=1):
                return f"did you mean `{close[0]}`?"
        return f"its arguments are {', '.join(known)}."


def members(annotation: Any) -> list[Any]:
    """The types that a union consists of, aliases resolved; other types are alone."""
    if isinstance(annotation, TypeAliasType):
        return members(annotation.__value__)
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [m for option in get_args(annotation) for m in members(option)]
    return [annotation]


def is_number(annotation: Any) -> bool:
    """Whether an annotation admits a number that may be traced."""
    plain: list[Any] = []
    for member in members(annotation):
        is_annotated = get_origin(member) is Annotated
        plain += members(get_args(member)[0]) if is_annotated else [member]
    return jax.Array in plain or (float in plain and int not in plain)


def _is_kernel(annotation: Any) -> bool:
    """Whether an argument is a function and nothing else."""
    rules = [getattr(m, "__metadata__", (None,))[0] for m in members(annotation)]
    return rules == [check_callable]


def _rule(annotation: Any) -> Callable[[str, Any], None]:
    """The check that an annotation stands for; none for types without a rule."""
    choices: list[Any] = []
    checks: list[Callable[[str, Any], None]] = []
    others: list[str] = []  # What the checks admit, for messages.
    for member in members(annotation):
        if get_origin(member) is Literal:
            choices += get_args(member)
        elif get_origin(member) is Annotated:
            rule, *kind = member.__metadata__
            checks.append(rule)
            others += kind or ["a number"]
        elif member is bool:
            checks.append(check_flag)
        elif member in (None, types.NoneType):
            choices.append(None)
        else:
            return _accept

    def check(name: str, value: Any) -> None:
        is_word = value is None or isinstance(value, str)
        if is_word and value in choices:
            return
        takes_words = any(isinstance(choice, str) for choice in choices)
        if checks and not (is_word and takes_words):
            checks[0](name, value)
        else:
            check_choice(name, value, choices, others)

    return check


def _accept(name: str, value: Any) -> None:
    del name, value


def check_choice(
    name: str, value: Any, choices: Collection[Any], others: Collection[str] = ()
) -> None:
    """Raises unless a value is one of the choices, which are strings or None.

    ``others`` says what else the argument may be, for the message.
    """
    is_word = value is None or isinstance(value, str)
    if not is_word or value not in choices:
        listed = ", ".join([*map(repr, choices), *others])
        raise ValueError(f"`{name}` must be one of {listed}; got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Raises unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")


def check_callable(name: str, value: Any) -> None:
    """Raises unless a value can be called."""
    if not callable(value):
        raise ValueError(
            f"`{name}` must be a function of one stack of matrices, got {value!r}; "
            "pass a function, such as one of `optax_matrix.linalg`, or its name."
        )


def check_dtype(name: str, value: Any) -> None:
    """Raises unless a value is a floating dtype or names one; an array is refused."""
    try:
        is_name = isinstance(value, str | type | np.dtype)
        floating = is_name and jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise ValueError(
            f"`{name}` must be a floating dtype or None, got {value!r}; pass "
            "jnp.bfloat16 or jnp.float32."
        )


# Aliases, so that `help` shows `b1: Decay` and not what it stands for.
Decay = TypeAliasType("Decay", Annotated[ArrayLike, check_decay])
Positive = TypeAliasType("Positive", Annotated[ArrayLike, check_positive])
Bound = TypeAliasType("Bound", Annotated[ArrayLike, check_bound])
NotNegative = TypeAliasType("NotNegative", Annotated[ArrayLike, check_not_negative])
AtLeastOne = TypeAliasType("AtLeastOne", Annotated[ArrayLike, check_at_least_one])
Rate = TypeAliasType(
    "Rate", Annotated[float | jax.Array | Callable[[Any], Any], check_rate]
)
PositiveInt = TypeAliasType("PositiveInt", Annotated[int, check_positive_int])
NotNegativeInt = TypeAliasType("NotNegativeInt", Annotated[int, check_not_negative_int])
Seed = TypeAliasType("Seed", Annotated[int, check_not_negative_int])
Rank = TypeAliasType("Rank", Annotated[int | float, check_rank])
Kernel = TypeAliasType(
    "Kernel",
    Annotated[Any, check_callable, "a function"],  # Or its name.
)
Dtype = TypeAliasType("Dtype", Annotated[DTypeLike, check_dtype])
