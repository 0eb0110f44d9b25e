"""Argument checks for the factories: name, rule, value and what to do.

Tracers pass: nothing may raise from what is not known. Concrete scalars of NumPy and
JAX are numbers like Python's.
"""

import numbers
from collections.abc import Callable, Collection
from typing import Any

import jax.core
import jax.numpy as jnp
import optax

from optax_matrix.arguments import check_positive_int

__all__ = [
    "check_at_least_one",
    "check_callable",
    "check_choice",
    "check_decay",
    "check_dtype",
    "check_flag",
    "check_not_negative",
    "check_not_negative_int",
    "check_positive",
    "check_positive_int",
    "check_rate",
    "check_transformation",
]


def check_decay(name: str, value: Any) -> None:
    """Raises unless a decay rate lies in ``[0, 1)``; see `_check_number`."""
    _check_number(name, value, "be in [0, 1)", lambda x: 0 <= x < 1)


def check_positive(name: str, value: Any) -> None:
    """Raises unless a number is above zero; see `_check_number`."""
    _check_number(name, value, "be positive", lambda x: x > 0)


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless a number is zero or above; see `_check_number`."""
    _check_number(name, value, "not be negative", lambda x: x >= 0)


def check_not_negative_int(name: str, value: Any) -> None:
    """Raises unless a value is a static int that 32 bits hold, such as a seed.

    Args:
        name: The argument's name, for the message.
        value: The value; arrays and tracers are refused, too.

    Raises:
        ValueError: If it is anything else.
    """
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_int or not 0 <= int(value) < 2**32:
        raise ValueError(f"`{name}` must be an int from 0 to 2**32 - 1, got {value!r}.")


def check_at_least_one(name: str, value: Any) -> None:
    """Raises unless a number is one or above; see `_check_number`."""
    _check_number(name, value, "be at least 1", lambda x: x >= 1)


def check_rate(name: str, value: Any) -> None:
    """Raises unless a value is a number that is not negative, or a schedule.

    optax takes None for a learning rate, too, and then leaves out the change of sign.

    Args:
        name: The argument's name, for the message.
        value: A number or a function of the step; a tracer passes.

    Raises:
        ValueError: If it is neither, negative or NaN.
    """
    if value is None:
        raise ValueError(
            f"`{name}` must be a number or a schedule, got None; pass 0.0 for none of "
            "it. (For updates without a learning rate use the `scale_by_` form.)"
        )
    if not callable(value):
        check_not_negative(name, value)


def _check_number(
    name: str, value: Any, rule: str, holds: Callable[[float], bool]
) -> None:
    """Raises unless a concrete value is one real number and keeps the rule.

    Args:
        name: The argument's name, for the message.
        value: The value; a tracer passes.
        rule: What must hold, in words.
        holds: Whether it does; False for NaN.

    Raises:
        ValueError: If it is no number or breaks the rule.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if callable(value):
        raise ValueError(
            f"`{name}` must be a number, got the function {value!r}; for a schedule "
            "wrap the factory, as in om.inject_hyperparams(om.muon)(...)."
        )
    if not _is_number(value):
        raise ValueError(
            f"`{name}` must be a number and {rule}, got {value!r}; pass a float or a "
            "traced scalar."
        )
    if not holds(float(value)):
        raise ValueError(f"`{name}` must {rule}, got {value!r}; pass another number.")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if hasattr(value, "dtype") and hasattr(value, "ndim"):  # NumPy's and JAX's
        real = (jnp.floating, jnp.integer)
        return value.ndim == 0 and any(jnp.issubdtype(value.dtype, t) for t in real)
    return isinstance(value, int | float)


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raises unless a value is one of a few.

    Args:
        name: The argument's name, for the message.
        value: The value, static.
        choices: What it may be: strings or None.

    Raises:
        ValueError: If it is none of them.
    """
    is_static = value is None or isinstance(value, str)
    if not is_static or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}` must be one of {listed}; got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """Raises unless a value is True or False.

    Args:
        name: The argument's name, for the message.
        value: The value, static.

    Raises:
        ValueError: If it is anything else.
    """
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")


def check_callable(name: str, value: Callable | Any) -> None:
    """Raises unless a value can be called.

    Args:
        name: The argument's name, for the message.
        value: The value, static.

    Raises:
        ValueError: If it cannot be called.
    """
    if not callable(value):
        raise ValueError(
            f"`{name}` must be a function of one stack of matrices, got {value!r}; "
            "pass the function itself, such as one of `optax_matrix.linalg`."
        )


def check_transformation(name: str, value: Any) -> None:
    """Raises unless a value is a gradient transformation.

    Args:
        name: The argument's name, for the message.
        value: The value, static.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, optax.GradientTransformation):
        raise ValueError(
            f"`{name}` must be a gradient transformation, got {value!r}; pass one that "
            "is made, such as optax.adamw(1e-3)."
        )


def check_dtype(name: str, value: Any) -> None:
    """Raises unless a value is None or names a floating dtype.

    Args:
        name: The argument's name, for the message.
        value: The value, static.

    Raises:
        ValueError: If it is something else.
    """
    try:
        floating = value is None or jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise ValueError(
            f"`{name}` must be a floating dtype or None, got {value!r}; pass "
            "jnp.bfloat16 or jnp.float32."
        )
