"""`checked`, and the rules that the annotations of a factory stand for."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

import jax
import numpy as np
from typing_extensions import TypeAliasType

from optax_matrix._arguments._checks import check_callable, check_choice, check_flag
from optax_matrix._arguments._functions import (
    KERNELS,
    check_alike,
    injectable,
    plain,
)
from optax_matrix._arguments._hints import hint

P = ParamSpec("P")
T = TypeVar("T")


def checked(factory: Callable[P, T]) -> Callable[P, T]:
    """Checks the arguments of a factory against its annotations.

    >>> from typing import Literal
    >>> from optax_matrix._arguments import Decay
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
        self.rules = {key: rule_of(p.annotation) for key, p in parameters}
        defaults = {key: plain(key, p.default) for key, p in parameters}
        self.kernels = {
            key: defaults[key]
            for key, p in parameters
            if inspect.isroutine(defaults[key]) and is_kernel(p.annotation)
        }

    def __call__(self, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """The arguments of a call, defaults included; kernels as functions."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            said = hint(self.name, kwargs, list(self.signature.parameters), len(args))
            raise TypeError(f"{self.name}() {error}; {said}") from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            is_name = isinstance(value, str) and name in KERNELS
            if is_name or isinstance(value, np.generic):
                bound.arguments[name] = plain(name, value)
        for name, value in bound.arguments.items():
            self.rules[name](name, value)
        for name, default in self.kernels.items():
            if bound.arguments[name] is not default:
                check_alike(name, bound.arguments[name], default)
        return bound


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


def is_kernel(annotation: Any) -> bool:
    """Whether an argument is a function and nothing else."""
    rules = [getattr(m, "__metadata__", (None,))[0] for m in members(annotation)]
    return rules == [check_callable]


def rule_of(annotation: Any) -> Callable[[str, Any], None]:
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
