"""Whether a function can be passed in place of another."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_SIDE = 6


def check_alike(name: str, value: Callable[..., Any], default: Callable) -> None:
    """Raises unless a function returns what the default of its argument returns.

    Both are traced, not run, with one small square matrix. Functions of this package
    are known to be right.
    """
    module = getattr(getattr(value, "func", value), "__module__", None) or ""
    if value is default or module.startswith("optax_matrix."):
        return
    x = jax.ShapeDtypeStruct((1, _SIDE, _SIDE), jnp.float32)
    known = inspect.signature(default).parameters
    given = {"previous": x} if "previous" in known else {}
    wanted = jax.eval_shape(default, x, **given)
    try:
        got = jax.eval_shape(value, x, **given)
    except Exception as error:
        result = f"raises {type(error).__name__}: {_first_line(error)}"
    else:
        if getattr(got, "shape", None) == wanted.shape:
            return
        result = f"returns {got}"
    named = "".join(f", {key}=..." for key in given)
    raise ValueError(
        f"`{name}` must be a function like {default.__name__}, from a stack of "
        f"matrices to one of the same shape, but {name}(stack{named}) {result}; pass "
        "another function, such as one of `optax_matrix.linalg`."
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
