"""What the numbers among the arguments may be.

Of a tracer, only shape and dtype are known. Scalars of NumPy and JAX are numbers.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp


def check_decay(name: str, value: Any) -> None:
    """Raises unless a number lies in ``[0, 1)``."""
    _check_number(name, value, "be in [0, 1)", lambda x: 0 <= x < 1)


def check_share(name: str, value: Any) -> None:
    """Raises unless a number lies in ``[0, 1]``."""
    _check_number(name, value, "be a number from 0 to 1", lambda x: 0 <= x <= 1)


def check_positive(name: str, value: Any) -> None:
    """Raises unless a number is above zero."""
    _check_number(name, value, "be positive", lambda x: x > 0)
    _check_finite(name, value)


def check_bound(name: str, value: Any) -> None:
    """Raises unless a number is above zero; infinity is allowed and means no bound."""
    _check_number(name, value, "be positive", lambda x: x > 0)


def check_not_negative(name: str, value: Any) -> None:
    """Raises unless a number is zero or above."""
    _check_number(name, value, "not be negative", lambda x: x >= 0)
    _check_finite(name, value)


def check_at_least_one(name: str, value: Any) -> None:
    """Raises unless a number is at least 1; infinity is allowed and means no bound."""
    _check_number(name, value, "be at least 1", lambda x: x >= 1)


def check_rate(name: str, value: Any) -> None:
    """Raises unless a value is a number that is not negative, or a schedule.

    None is refused, too: optax takes it for a learning rate and leaves out the sign.
    """
    if value is None:
        raise ValueError(
            f"`{name}` must be a number or a schedule, got None; pass 0.0 for none of "
            "it. (For updates without a learning rate use the `scale_by_` form.)"
        )
    if not callable(value) or isinstance(value, type):
        check_not_negative(name, value)


def check_positive_int(name: str, value: Any) -> None:
    """Raises unless a value is a static int of at least one that int32 holds."""
    refuse_arrays(name, value)
    if not _is_int(value) or not 1 <= int(value) < 2**31:
        raise ValueError(
            f"`{name}` must be a positive int, got {value!r}; pass a static number, "
            "such as 5, below 2**31."
        )


def check_not_negative_int(name: str, value: Any) -> None:
    """Raises unless a value is a static int that 32 bits hold, such as a seed."""
    refuse_arrays(name, value)
    if not _is_int(value) or not 0 <= int(value) < 2**32:
        raise ValueError(f"`{name}` must be an int from 0 to 2**32 - 1, got {value!r}.")


def check_rank(name: str, value: Any) -> None:
    """Raises unless a rank is a positive int, or a float in (0, 1] for a fraction."""
    refuse_arrays(name, value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    size = float(value) if is_number else 0.0
    is_fraction = is_number and not isinstance(value, numbers.Integral)
    if not (0 < size <= 1 if is_fraction else size > 0):
        raise ValueError(
            f"`{name}` must be a positive int, or a float in (0, 1] for a fraction, "
            f"got {value!r}; pass 1.0 for all."
        )


def refuse_arrays(name: str, value: Any) -> None:
    """Raises if a number that decides about shapes or loops is an array."""
    if isinstance(value, jax.Array):
        raise ValueError(
            f"`{name}` must be a static Python number, got {value!r}; "
            "optax.inject_hyperparams makes arrays of all numbers that it is given, so "
            "use om.inject_hyperparams or functools.partial(..., "
            f"{name}=...)."
        )


def _check_number(
    name: str, value: Any, rule: str, holds: Callable[[float], bool]
) -> None:
    """Raises unless a value is a real number for which the rule holds.

    Of a tracer, only shape and dtype are known.
    """
    if callable(value) and not isinstance(value, type):
        raise ValueError(
            f"`{name}` must be a number, got the function {value!r}; for a schedule "
            "wrap the factory, as in om.inject_hyperparams(om.muon)(...)."
        )
    if not _is_number(value):
        raise ValueError(
            f"`{name}` must be a number and {rule}, got {value!r}; pass a float or a "
            "traced scalar."
        )
    if isinstance(value, jax.core.Tracer):
        return
    size: Any = value
    if not holds(float(size)):  # False for NaN.
        raise ValueError(f"`{name}` must {rule}, got {value!r}; pass another number.")


def _check_finite(name: str, value: Any) -> None:
    if not isinstance(value, jax.core.Tracer) and math.isinf(value):
        raise ValueError(
            f"`{name}` must be finite, got {value!r}; pass another number."
        )


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | jax.ShapeDtypeStruct):
        return False
    if hasattr(value, "dtype") and hasattr(value, "ndim"):  # NumPy's and JAX's.
        real = (jnp.floating, jnp.integer)
        return value.ndim == 0 and any(jnp.issubdtype(value.dtype, t) for t in real)
    return isinstance(value, int | float)


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
