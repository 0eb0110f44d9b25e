"""What the arguments of a factory may be, declared once, in the signature.

``b1: Decay = 0.9`` is the whole declaration of an argument: a type for readers and type
checkers, and a rule that `checked` enforces when the factory is called. Literals,
flags and optional arguments need nothing more than their annotation. A violation is a
`ValueError` that gives the argument, the rule, the value and what to do.

Tracers pass: their values are not known. Scalars of NumPy and JAX count as numbers.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from typing_extensions import TypeAliasType

from optax_matrix._arguments._functions import (
    KERNELS as KERNELS,
    check_alike,
    injectable,
    is_function as is_function,
    plain,
)
from optax_matrix._arguments._hints import hint
from optax_matrix._arguments._rules import (
    check_at_least_one,
    check_bound,
    check_callable,
    check_choice as check_choice,
    check_decay,
    check_dtype,
    check_flag as check_flag,
    check_not_negative,
    check_not_negative_int,
    check_positive,
    check_positive_int,
    check_rank,
    check_rate,
    check_share,
    is_kernel,
    is_number,
    members as members,
    rule_of,
)

P = ParamSpec("P")
T = TypeVar("T")


def checked(factory: Callable[P, T]) -> Callable[P, T]:
    """Checks the arguments of a factory against its annotations.

    >>> from typing import Literal
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
            said = hint(self.name, kwargs, list(self.signature.parameters))
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


# Aliases, so that `help` shows `b1: Decay` and not what it stands for.
Decay = TypeAliasType("Decay", Annotated[ArrayLike, check_decay])
Share = TypeAliasType("Share", Annotated[ArrayLike, check_share])
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
