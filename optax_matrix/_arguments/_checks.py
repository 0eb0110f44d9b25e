"""The rules that arguments must keep; each raises a `ValueError` that says what to do.

Of a tracer, only shape and dtype are known. Scalars of NumPy and JAX are numbers.
"""

import math
import numbers
import re
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_matrix._arguments._functions import KERNELS, check_called
from optax_matrix._arguments._told import told
from optax_matrix._dtypes import is_tiny


def check_choice(
    name: str, value: Any, choices: Collection[Any], others: Collection[str] = ()
) -> None:
    """Raises unless a value is one of the choices, which are strings or None.

    ``others`` says what else the argument may be, for the message.
    """
    is_word = value is None or isinstance(value, str)
    if not is_word or value not in choices:
        listed = ", ".join([*map(repr, choices), *others])
        raise ValueError(f"`{name}` must be one of {listed}; got {told(value)}.")


def check_flag(name: str, value: Any) -> None:
    """Raises unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {told(value)}.")


def check_pattern(name: str, value: Any) -> None:
    """Raises unless a value is a regular expression."""
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`{name}` must be a regular expression, got {told(value)}: {error}."
        ) from None


def check_callable(name: str, value: Any) -> None:
    """Raises unless a value is a function, and not an uncalled factory."""
    if not callable(value):
        or_name = ", or its name" if name in KERNELS else ""
        way = f"pass a function, such as one of `optax_matrix.linalg`{or_name}"
        if name == "polar" and isinstance(value, int):
            way = f"write functools.partial(om.linalg.newton_schulz, steps={value})"
        raise ValueError(
            f"`{name}` must be a function of one stack of matrices, got {told(value)}; "
            f"{way}."
        )
    check_called(name, value)


def check_dtype(name: str, value: Any) -> None:
    """Raises unless a value is a floating dtype of 16 bits or more, or names one.

    An array is refused.
    """
    try:
        is_name = isinstance(value, str | type | np.dtype)
        floating = is_name and jnp.issubdtype(jnp.dtype(value), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise ValueError(
            f"`{name}` must be a floating dtype or None, got {told(value)}; pass "
            "jnp.bfloat16 or jnp.float32."
        )
    if is_tiny(value):
        state = " For a state in eight bits use om.quantized or om.adamw_8bit."
        raise ValueError(
            f"`{name}` must have 16 bits or more, got {jnp.dtype(value).name}, which "
            "has no scale of its own and rounds small numbers to zero; pass "
            f"jnp.bfloat16.{'' if name == 'compute_dtype' else state}"
        )


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

    None is refused, too: optax treats it as a learning rate and leaves out the sign.
    """
    if value is None:
        raise ValueError(
            f"`{name}` must be a number or a schedule, got None; pass 0.0 for none of "
            "it. (For updates without a learning rate use the `scale_by_` form.)"
        )
    if callable(value) and not isinstance(value, type):
        _check_schedule(name, value)
    elif _is_number(value):
        check_not_negative(name, value)
    else:
        raise ValueError(
            f"`{name}` must be a number and must not be negative, or a schedule, got "
            f"{told(value)}; pass a float, a traced scalar or a schedule of optax."
        )


def check_weight(name: str, value: Any) -> None:
    """Raises unless a value is a finite number, of any sign, or a schedule."""
    if callable(value) and not isinstance(value, type):
        _check_schedule(name, value)
        return
    _check_number(name, value, "be no NaN", lambda x: not math.isnan(x))
    _check_finite(name, value)


def _check_schedule(name: str, schedule: Callable[..., Any]) -> None:
    """Raises unless a schedule gives a number for a count of steps.

    It is traced, not run. One that only runs outside of `jax.jit` passes.
    """
    must = f"`{name}` must be a number or a function from the count of steps to one"
    advice = "pass a schedule, such as optax.constant_schedule(1e-3)."
    found = []

    def look(count: Any) -> Any:
        found.append(schedule(count))
        return count

    try:
        jax.eval_shape(look, jax.ShapeDtypeStruct((), jnp.int32))
    except jax.errors.JAXTypeError:
        return
    except Exception as error:
        said = f"raises {type(error).__name__}: {error}"
        raise ValueError(f"{must}, but {name}(count) {said}; {advice}") from None
    if not _is_number(found[0]):
        shape = getattr(found[0], "shape", None)
        got = found[0] if shape is None else f"an array of shape {shape}"
        raise ValueError(f"{must}, but {name}(count) is {got}; {advice}")


def check_positive_int(name: str, value: Any) -> None:
    """Raises unless a value is a static int of at least one that int32 holds."""
    refuse_arrays(name, value)
    if not _is_int(value) or not 1 <= int(value) < 2**31:
        raise ValueError(
            f"`{name}` must be a positive int, got {told(value)}; pass a static "
            "number, such as 5, below 2**31."
        )


def check_not_negative_int(name: str, value: Any) -> None:
    """Raises unless a value is a static int that 32 bits hold, such as a seed."""
    refuse_arrays(name, value)
    if not _is_int(value) or not 0 <= int(value) < 2**32:
        raise ValueError(
            f"`{name}` must be an int from 0 to 2**32 - 1, got {told(value)}."
        )


def check_rank(name: str, value: Any) -> None:
    """Raises unless a rank is a positive int, or a float in (0, 1] for a fraction."""
    refuse_arrays(name, value)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    size = float(value) if is_number else 0.0
    is_fraction = is_number and not isinstance(value, numbers.Integral)
    if not (0 < size <= 1 if is_fraction else size > 0):
        raise ValueError(
            f"`{name}` must be a positive int, or a float in (0, 1] for a fraction, "
            f"got {told(value)}; pass 1.0 for all."
        )


def check_exponent(name: str, value: Any) -> None:
    """Raises unless a value is a static number above zero, such as an exponent."""
    refuse_arrays(name, value)
    check_positive(name, value)


def refuse_arrays(name: str, value: Any) -> None:
    """Raises if a number that decides about shapes or loops is an array."""
    if isinstance(value, jax.Array):
        raise ValueError(
            f"`{name}` must be a static Python number, got {told(value)}; "
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
            f"`{name}` must be a number, got the function {told(value)}; for a "
            "schedule wrap the factory, as in om.inject_hyperparams(om.muon)(...)."
        )
    if not _is_number(value):
        raise ValueError(
            f"`{name}` must be a number and must {rule}, got {told(value)}; pass a "
            "float or a traced scalar."
        )
    if isinstance(value, jax.core.Tracer):
        return
    size: Any = value
    if not holds(float(size)):  # False for NaN.
        raise ValueError(
            f"`{name}` must {rule}, got {told(value)}; pass another number."
        )


def _check_finite(name: str, value: Any) -> None:
    if not isinstance(value, jax.core.Tracer) and math.isinf(value):
        raise ValueError(
            f"`{name}` must be finite, got {told(value)}; pass another number."
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
