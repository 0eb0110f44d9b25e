"""The kinds of numbers in the arrays of a state, and their signs."""

from typing import Any

import jax.numpy as jnp
import numpy as np

_KINDS = {
    "bools": np.bool_,
    "integers": jnp.integer,
    "real numbers": jnp.floating,
    "complex numbers": jnp.complexfloating,
}


def kind_of(dtype: Any) -> str:
    """The kind of numbers in arrays of a dtype, in words."""
    found = (name for name, kind in _KINDS.items() if jnp.issubdtype(dtype, kind))
    return next(found, f"arrays of dtype {dtype}")


def typed(
    value: Any, dtype: Any, key: str, what: str = "portable", alone: bool = False
) -> np.ndarray:
    """An array on the host; raises unless it holds numbers of the kind of a dtype.

    A number that belongs to no parameter (``alone``) may be written as an integer.
    """
    value = _named(np.asarray(value), dtype, key, what)
    wanted, got = kind_of(dtype), kind_of(value.dtype)
    if alone and not value.ndim and (got, wanted) == ("integers", "real numbers"):
        with np.errstate(over="ignore"):
            exact = value.astype(dtype)
        value = exact if float(exact) == int(value) else value
        got = kind_of(value.dtype)
    if got != wanted:
        raise ValueError(
            f"`{what}` must hold {wanted} for {key!r}, which is {dtype} in the state, "
            + _instead(value, wanted)
        )
    if wanted == "integers" and (wrong := value[value.astype(dtype) != value]).size:
        info = jnp.iinfo(dtype)
        raise ValueError(
            f"`{what}` must hold integers that {dtype} can hold for {key!r}, got "
            f"{wrong[0]}; give numbers from {info.min} to {info.max}."
        )
    return value


def _instead(value: np.ndarray, wanted: str) -> str:
    """The end of a message: the kind of number that was found, and what to do."""
    if value.dtype == np.uint8 and wanted == "real numbers":
        return (
            "got uint8, as the codes of `quantized`, without their scales; pass all of "
            "to_portable(state, params), from which from_portable restores the numbers."
        )
    return (
        f"got {value.dtype.name}: it was changed, or was written by another version of "
        "optax_matrix; correct it, or leave it out and pass missing='init'."
    )


def _named(value: np.ndarray, dtype: Any, key: str, what: str) -> np.ndarray:
    """The array with the dtype that `numpy.savez` does not know, such as bfloat16."""
    if value.dtype.type is not np.void:
        return value
    if value.dtype.itemsize == dtype.itemsize and dtype.kind == "V":
        return value.view(dtype)
    if value.dtype.itemsize == 2:
        return value.view(jnp.bfloat16)
    raise ValueError(
        f"`{what}` must hold numbers, got {value.dtype.str[1:]} bytes of an unknown "
        f"dtype for {key!r} of dtype {dtype}; save it as float32."
    )


def check_signs(value: np.ndarray, key: str, what: str):
    """Raises if a second moment that cannot have negative numbers has some."""
    if kind_of(value.dtype) == "real numbers" and (value < 0).any():
        raise ValueError(
            f"`{what}` must hold no negative numbers in the second moment {key!r}, got "
            f"{value.min()}; the checkpoint is damaged: restore an earlier one."
        )
