"""What the arguments of a factory may be, declared once, in the signature.

``b1: Decay = 0.9`` is the whole declaration of an argument: a type for readers and type
checkers, and a rule that `checked` enforces when the factory is called. Literals,
flags and optional arguments need nothing more than their annotation. A violation is a
`ValueError` that gives the argument, the rule, the value and what to do.

Tracers pass: their values are not known. Scalars of NumPy and JAX count as numbers.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
from jax.typing import ArrayLike, DTypeLike
from typing_extensions import TypeAliasType

from optax_matrix._arguments._checks import (
    check_at_least_one,
    check_bound,
    check_callable,
    check_choice as check_choice,
    check_decay,
    check_dtype as check_dtype,
    check_exponent,
    check_flag as check_flag,
    check_not_negative as check_not_negative,
    check_not_negative_int,
    check_pattern as check_pattern,
    check_positive,
    check_positive_int as check_positive_int,
    check_rank,
    check_rate,
    check_share,
    check_weight as check_weight,
)
from optax_matrix._arguments._functions import (
    KERNELS as KERNELS,
    check_called as check_called,
    check_optimizer,
    injectable as injectable,
    is_function as is_function,
)
from optax_matrix._arguments._rules import (
    Checker as Checker,
    checked as checked,
    is_number as is_number,
    members as members,
    unchecked as unchecked,
)

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
Exponent = TypeAliasType("Exponent", Annotated[int | float, check_exponent])
Kernel = TypeAliasType(
    "Kernel",
    Annotated[Any, check_callable, "a function"],  # Or its name.
)
Pattern = TypeAliasType(
    "Pattern", Annotated[str, check_pattern, "a regular expression"]
)
Dtype = TypeAliasType("Dtype", Annotated[DTypeLike, check_dtype])
AnyOptimizer = TypeAliasType(
    "AnyOptimizer", Annotated[Any, check_optimizer, "an optimizer"]
)
