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
    parameters = check.signature.parameters.items()
    kernels = [key for key, p in parameters if check_callable in rules(p.annotation)]

    @functools.wraps(factory)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = check(args, kwargs)
        for key in kernels:
            bound.arguments[key] = unchecked(bound.arguments[key])
        return factory(*bound.args, **bound.kwargs)

    shown: Any = run
    shown.checked = run, check, factory
    shown.__signature__ = injectable(check.signature, is_number)
    return run


def unchecked(f: Any) -> Any:
    """A function without its check of arguments, or a partial one of them.

    The options of a ``partial`` are checked here. A block calls its kernels in every
    trace of a step, always with the same options.
    """
    is_partial = isinstance(f, functools.partial)
    outer = f.func if is_partial else f
    known: Any = getattr(outer, "checked", (None, None, None))
    run, check, plain = known
    # `functools.wraps` copies the attribute to other functions.
    if check is None or run is not outer or (is_partial and f.args):
        return f
    return (
        functools.partial(plain, **check.options(f.keywords)) if is_partial else plain
    )


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
            if inspect.isroutine(defaults[key])
            and rules(p.annotation) == [check_callable]
        }

    def __call__(self, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """The arguments of a call, defaults included; kernels as functions."""
        bound = self._bound(self.signature.bind, args, kwargs)
        bound.apply_defaults()
        self._check(bound.arguments)
        for name, default in self.kernels.items():
            if bound.arguments[name] is not default:
                check_alike(name, bound.arguments[name], default)
        return bound

    def options(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """Some of the arguments of later calls, checked."""
        found = self._bound(self.signature.bind_partial, (), keywords).arguments
        self._check(found)
        return found

    def _bound(self, bind: Callable, args: Any, kwargs: Any) -> inspect.BoundArguments:
        try:
            return bind(*args, **kwargs)
        except TypeError as error:
            said = hint(self.name, kwargs, list(self.signature.parameters), len(args))
            raise TypeError(f"{self.name}() {error}; {said}") from None

    def _check(self, arguments: dict[str, Any]) -> None:
        """Checks arguments, those given by name or as NumPy's numbers as they are."""
        for name, value in arguments.items():
            is_name = isinstance(value, str) and name in KERNELS
            if is_name or isinstance(value, np.generic):
                arguments[name] = plain(name, value)
        for name, value in arguments.items():
            self.rules[name](name, value)


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


def rules(annotation: Any) -> list[Any]:
    """The rule of each type that an argument may have; None for types without one."""
    return [getattr(m, "__metadata__", (None,))[0] for m in members(annotation)]


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
