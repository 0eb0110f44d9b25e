"""Numbers of the kind that a state holds, and with the signs that they can have."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from optax_matrix.transforms.wrappers.quantizer import UNSIGNED

_KINDS = {
    "bools": np.bool_,
    "integers": jnp.integer,
    "real numbers": jnp.floating,
    "complex numbers": jnp.complexfloating,
}


def kind_of(dtype: Any) -> str:
    """What arrays of a dtype hold, in words."""
    found = (name for name, kind in _KINDS.items() if jnp.issubdtype(dtype, kind))
    return next(found, f"arrays of dtype {dtype}")


def typed(value: Any, dtype: Any, key: str, what: str = "portable") -> np.ndarray:
    """An array on the host; raises unless it holds what arrays of this dtype hold."""
    value = _named(np.asarray(value), dtype, key, what)
    wanted = kind_of(dtype)
    if kind_of(value.dtype) != wanted:
        got, instead = value.dtype.name, "correct it, or leave it out and start afresh"
        if value.dtype == np.uint8 and wanted == "real numbers":
            got = "uint8, as the codes of `quantized`, without their scales"
            instead = (
                "pass all of to_portable(state, params), from which from_portable "
                "restores the numbers"
            )
        raise ValueError(
            f"`{what}` must hold {wanted} for {key!r}, which is {dtype} in the state, "
            f"got {got}; {instead}, or it was written by another version of "
            "optax_matrix."
        )
    if wanted == "integers" and (value.astype(dtype) != value).any():
        raise ValueError(
            f"`{what}` must hold integers that {dtype} can hold for {key!r}, got "
            f"{value.max()}; count from a smaller number."
        )
    return value


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


def check_signs(value: np.ndarray, field: str, of_matrices: bool, key: str, what: str):
    """Raises if a field that cannot have negative numbers has some.

    These are the second moments. What other programs call ``root`` or ``largest`` may
    be something else.
    """
    fields = UNSIGNED if of_matrices else ("nu",)
    if field in fields and kind_of(value.dtype) == "real numbers" and (value < 0).any():
        raise ValueError(
            f"`{what}` must hold no negative numbers in the second moment {key!r}, got "
            f"{value.min()}; the checkpoint is damaged: restore an earlier one."
        )
