"""A user's own optimizer, by the path of a function: ``my_module:make:b1=0.95``."""

import hashlib
import importlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import optax

from examples.pretrain.errors import UserError, first_line
from examples.pretrain.options import Method, keywords, with_options


def checksum(name: str) -> str:
    """The checksum of the file of a function: its runs are those of one version.

    Raises:
        UserError: As `find`.
    """
    module, _ = _function(*_parts(name)[:2])
    file = getattr(module, "__file__", None)
    content = pathlib.Path(file).read_bytes() if file else b""
    return hashlib.sha256(content).hexdigest()[:8]


def find(name: str, dimension_numbers: Any = None) -> Method:
    """The method that a function makes, with the options of its name.

    Args:
        name: Module, function and options, as in ``my_module:make:b1=0.95``.
        dimension_numbers: Those given to functions that have this keyword.

    Raises:
        UserError: If there is no such module or function, or it fails with a schedule
            as its learning rate, or returns no optax transformation.
    """
    path, function, rest = _parts(name)
    make = function_of(name)
    shown = f"{path}:{function}"
    takes = "dimension_numbers" in inspect.signature(make).parameters

    def build(learning_rate, dimension_numbers=dimension_numbers, **options):
        given = {"dimension_numbers": dimension_numbers} if takes else {}
        try:
            made = make(learning_rate, **given, **options)
        except Exception as error:  # Of the user's code, of any kind.
            raise UserError(
                f"{shown} failed, called with a schedule as its learning rate "
                f"({_said(error)})."
            ) from error
        if not isinstance(made, optax.GradientTransformation):
            raise UserError(
                f"{shown} must return an optax.GradientTransformation, got {made!r}."
            )
        return made

    method = with_options(rest, {function: Method(build, keywords(make))})
    method(optax.constant_schedule(0.0))
    return method


def function_of(name: str) -> Callable[..., Any]:
    """The function of a name.

    Raises:
        UserError: If there is none, or its first argument cannot be a learning rate.
    """
    path, function, _ = _parts(name)
    _, make = _function(path, function)
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = next(iter(inspect.signature(make).parameters.values()), None)
    if first is None or first.kind not in kinds:
        raise UserError(
            f"{path}:{function} must take the learning rate as its first argument."
        )
    return make


def _parts(name: str) -> tuple[str, str, str]:
    """Module, function, and the function with options."""
    path, _, rest = name.partition(":")
    function = rest.partition(":")[0]
    if not (path and function):
        raise UserError(
            f"{name!r} names no function; give its module, too: my_module:make."
        )
    return path, function, rest


def _function(path: str, name: str) -> tuple[Any, Callable[..., Any]]:
    """A module and one of its functions."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise UserError(f"Cannot import {path} ({_said(error)}).") from error
        raise UserError(
            f"There is no module {path!r} in the current directory or on PYTHONPATH."
        ) from None
    except Exception as error:  # Of the user's code, of any kind.
        raise UserError(f"Cannot import {path} ({_said(error)}).") from error
    if not hasattr(module, name):
        raise UserError(f"The module {path} has no {name!r}.")
    function = getattr(module, name)
    if not callable(function):
        raise UserError(f"{path}:{name} must be a function, got {function!r}.")
    return module, function


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
