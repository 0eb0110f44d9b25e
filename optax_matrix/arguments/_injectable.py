"""Signatures that `optax.inject_hyperparams` can read.

optax takes every function among the arguments, defaults included, for a schedule, and
makes an array of every int. Here a function has a name instead, and an int default is a
NumPy integer, which optax leaves alone.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

KERNELS: dict[str, dict[str, Callable[..., Any]]] = {}
"""The functions that an argument takes by name, by argument; `linalg` enters them."""


class _Int(np.int64):
    """An int that `optax.inject_hyperparams` leaves alone."""

    def __repr__(self) -> str:
        return str(int(self))


def injectable(signature: inspect.Signature) -> inspect.Signature:
    """A signature whose defaults `optax.inject_hyperparams` leaves alone.

    Args:
        signature: A signature.

    Returns:
        The same with kernels by name and ints that are no Python ints.
    """

    def shown(parameter: inspect.Parameter) -> inspect.Parameter:
        default = parameter.default
        if type(default) is int:
            default = _Int(default)
        for name, kernel in KERNELS.get(parameter.name, {}).items():
            if default is kernel:
                default = name
        return parameter.replace(default=default)

    parameters = map(shown, signature.parameters.values())
    return signature.replace(parameters=list(parameters))


def plain(name: str, value: Any) -> Any:
    """The value that an argument stands for: a kernel by name, an int of a default.

    Args:
        name: Name of the argument.
        value: Its value.

    Returns:
        The value, or the function or int that it stands for.

    Raises:
        ValueError: If no kernel has this name.
    """
    if isinstance(value, _Int):
        return int(value)
    if not isinstance(value, str) or name not in KERNELS:
        return value
    if value not in KERNELS[name]:
        raise ValueError(
            f"`{name}` must be a function of one stack of matrices or one of "
            f"{', '.join(KERNELS[name])}, got {value!r}; functions are in "
            "`optax_matrix.linalg`."
        )
    return KERNELS[name][value]
