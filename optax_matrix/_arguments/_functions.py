"""Functions among the arguments, and signatures that optax can inject.

`optax.inject_hyperparams` takes every function among the arguments, defaults included,
for a schedule, and makes an array of every number. Here a function has a name instead,
and a static number is a NumPy scalar, which optax leaves alone.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

_SIDE = 6
_MADE = "GradientTransformation", "Basis", "Policy"  # What factories return.


def is_function(value: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether a value is to be called: models that are trees can be called, too."""
    is_tree = not jax.tree_util.all_leaves([value])
    return callable(value) and (not is_tree or isinstance(value, jax.tree_util.Partial))


def check_called(name: str, value: Any) -> None:
    """Raises if a value is a factory of optax or of this package that was not called.

    An uncalled factory would fail only inside `update`.
    """
    if not inspect.isfunction(value) or "." in value.__qualname__:
        return
    package = value.__globals__["__name__"].partition(".")[0]
    if package not in ("optax", "optax_matrix"):
        return
    result = str(inspect.signature(value).return_annotation)
    if any(kind in result for kind in _MADE):
        raise ValueError(
            f"`{name}` must be what {value.__name__} returns, got the function itself; "
            f"call it: {name}={value.__name__}(...)."
        )


def check_optimizer(name: str, value: Any) -> None:
    """Raises unless a value has ``init`` and ``update``, as `optax.MultiSteps` has."""
    check_called(name, value)
    if not (hasattr(value, "init") and hasattr(value, "update")):
        raise ValueError(
            f"`{name}` must be an optimizer, with `init` and `update`, got "
            f"{type(value).__name__}; see the order of the arguments."
        )


def check_alike(name: str, value: Callable[..., Any], default: Callable) -> None:
    """Raises unless a function returns what the default of its argument returns.

    Both are traced, not run, with one small square matrix. Functions of this package
    are known to be right, but not with a user's options.
    """
    if _is_ours(value):
        return
    if isinstance(value, functools.partial) and _is_ours(value.func):
        # Whether a form of a kernel runs, only the devices of a step can tell.
        options = {k: x for k, x in value.keywords.items() if k != "kernel"}
        value = functools.partial(value.func, *value.args, **options)
        try:
            items = tuple(options.items())
            result = _known_difference(value.func, value.args, items, default)
        except TypeError:  # Of arguments that have no hash.
            result = _difference(value, default)
    else:
        result = _difference(value, default)
    if result is None:
        return
    given = ["previous"] if "previous" in inspect.signature(default).parameters else []
    named = "".join(f", {key}=..." for key in given)
    raise ValueError(
        f"`{name}` must be a function like {default.__name__}, from a stack of "
        f"matrices to one of the same shape, but {name}(stack{named}) {result}; pass "
        "another function, such as one of `optax_matrix.linalg`."
    )


def _is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").startswith("optax_matrix.")


def _difference(value: Callable[..., Any], default: Callable) -> str | None:
    """What a function does other than the default; None for nothing."""
    x = jax.ShapeDtypeStruct((1, _SIDE, _SIDE), jnp.float32)
    known = inspect.signature(default).parameters
    given = {"previous": x} if "previous" in known else {}
    wanted = jax.eval_shape(default, x, **given)
    try:
        got = jax.eval_shape(value, x, **given)
    except Exception as error:
        return f"raises {type(error).__name__}: {_first_line(error)}"
    same = getattr(got, "shape", None) == wanted.shape
    return None if same else f"returns {got}"


@functools.lru_cache
def _known_difference(
    f: Callable[..., Any], args: tuple, options: tuple, default: Callable
) -> str | None:
    return _difference(functools.partial(f, *args, **dict(options)), default)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(".")


KERNELS: dict[str, dict[str, Callable[..., Any]]] = {}
"""The functions that an argument takes by name, by argument; `linalg` enters them."""


class _Int(np.int64):
    """An int that `optax.inject_hyperparams` leaves alone."""

    def __repr__(self) -> str:
        return str(int(self))


class _Float(np.float32):
    """A static float that `optax.inject_hyperparams` leaves alone."""

    def __repr__(self) -> str:
        return str(float(self))


def injectable(
    signature: inspect.Signature, is_dynamic: Callable[[Any], bool]
) -> inspect.Signature:
    """A signature with kernels by name and static numbers that are no Python numbers.

    ``is_dynamic`` says whether an annotation admits a number that may be traced.
    """

    def shown(parameter: inspect.Parameter) -> inspect.Parameter:
        default = parameter.default
        if type(default) is int:
            default = _Int(default)
        elif type(default) is float and not is_dynamic(parameter.annotation):
            default = _Float(default)
        for name, kernel in KERNELS.get(parameter.name, {}).items():
            if default is kernel:
                default = name
        return parameter.replace(default=default)

    parameters = map(shown, signature.parameters.values())
    return signature.replace(parameters=list(parameters))


def plain(name: str, value: Any) -> Any:
    """The value of an argument: the kernel of a name, the int of a static default."""
    if isinstance(value, _Int | _Float):
        return value.item()
    if not isinstance(value, str) or name not in KERNELS:
        return value
    if value not in KERNELS[name]:
        raise ValueError(
            f"`{name}` must be a function of one stack of matrices or one of "
            f"{', '.join(KERNELS[name])}, got {value!r}; functions are in "
            "`optax_matrix.linalg`."
        )
    return KERNELS[name][value]
