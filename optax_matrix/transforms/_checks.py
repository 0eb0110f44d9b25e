"""Argument checks for the factories; traced and array values are left alone."""

from collections.abc import Callable, Collection
from typing import Any


def check_decay(name: str, value: Any) -> None:
    """Raises unless a concrete decay rate lies in ``[0, 1)``.

    Args:
        name: The argument's name, for the message.
        value: A number, checked; anything else (a tracer, an array) passes.

    Raises:
        ValueError: If the number lies outside the interval.
    """
    if isinstance(value, int | float) and not 0 <= value < 1:
        raise ValueError(f"`{name}` must be in [0, 1), got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Raises unless a concrete number is above zero.

    Args:
        name: The argument's name, for the message.
        value: A number, checked; anything else (a tracer, an array) passes.

    Raises:
        ValueError: If the number is zero, negative or NaN.
    """
    if isinstance(value, int | float) and not value > 0:
        raise ValueError(f"`{name}` must be positive, got {value!r}.")


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless a concrete number is zero or above.

    Args:
        name: The argument's name, for the message.
        value: A number, checked; anything else (a tracer, an array) passes.

    Raises:
        ValueError: If the number is negative or NaN.
    """
    if isinstance(value, int | float) and not value >= 0:
        raise ValueError(f"`{name}` must not be negative, got {value!r}.")


def check_positive_int(name: str, value: Any) -> None:
    """Raises unless a value is a Python int of at least one.

    Args:
        name: The argument's name, for the message.
        value: The value; it is static, so arrays and tracers are refused too.

    Raises:
        ValueError: If it is anything but a positive int.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"`{name}` must be a positive int, got {value!r}.")


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raises unless a value is one of a few.

    Args:
        name: The argument's name, for the message.
        value: The value, static.
        choices: What it may be.

    Raises:
        ValueError: If it is none of them.
    """
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}` must be one of {listed}; got {value!r}.")


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
            "pass the kernel itself, such as `newton_schulz`."
        )
