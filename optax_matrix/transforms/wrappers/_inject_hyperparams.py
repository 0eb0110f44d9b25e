"""Hyperparameters as state, without rounding them or tracing static arguments."""

import collections.abc
import functools
import inspect
import numbers
import typing
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import optax

from optax_matrix._arguments import is_number, members
from optax_matrix.transforms.wrappers._precision import keep_dtype, with_dtypes_of


def inject_hyperparams(
    factory: Callable[..., optax.GradientTransformation],
    static_args: Iterable[str] = (),
) -> Callable[..., optax.GradientTransformationExtraArgs]:
    """`optax.inject_hyperparams` for factories with static arguments and bf16 trees.

    Numbers and schedules become state, so that they can be read, changed between steps
    and scheduled. Arguments that `factory` does not annotate as numbers
    (`jax.typing.ArrayLike`, `float`, `optax.ScalarOrSchedule`) are static: ints,
    strings, kernels, rules and masks are not changed. Hyperparameters are float32
    whatever the dtype of the parameters. optax rounds them to that dtype, and 0.999 is
    1.0 in bfloat16. Updates still have the dtype of the parameters, and each array of
    the state that which `init` gave it. JAX refuses `optax.novograd` on bfloat16
    parameters so, as it chooses between two dtypes.

    Args:
        factory: A recipe or block of this package or of optax.
        static_args: Names of further arguments to keep static.

    Returns:
        A factory with the signature of `factory`.

    Raises:
        ValueError: If `factory` is a transformation, or `static_args` names an argument
            that `factory` does not have.

    Examples:
        >>> import jax.numpy as jnp, optax, optax_matrix as om
        >>> schedule = optax.linear_schedule(1.0, 0.0, 10)
        >>> tx = om.inject_hyperparams(om.muoneq)(schedule, b1=0.9)
        >>> state = tx.init({"kernel": jnp.ones((2, 3), jnp.bfloat16)})
        >>> state.hyperparams["b1"].dtype.name
        'float32'
    """
    if isinstance(factory, optax.GradientTransformation):
        raise ValueError(
            "`factory` must be the function that makes a transformation, got a "
            "transformation; write om.inject_hyperparams(om.muoneq)(3e-3), not "
            "om.inject_hyperparams(om.muoneq(3e-3))."
        )
    signature = inspect.signature(factory, eval_str=True)
    parameters = signature.parameters
    if unknown := sorted(set(static_args) - set(parameters)):
        raise ValueError(
            f"`static_args` must name arguments of {factory.__name__}, got {unknown}; "
            f"it has {sorted(parameters)}."
        )
    static = {name for name, p in parameters.items() if not _is_dynamic(p.annotation)}
    static |= set(static_args)

    @functools.wraps(factory)
    def stable(*args, **kwargs):
        return keep_dtype(_keep_state(factory(*args, **kwargs)))

    injected = optax.inject_hyperparams(
        stable, static_args=static, hyperparam_dtype=jnp.dtype("float32")
    )

    @functools.wraps(factory)
    def with_floats(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            factory(*args, **kwargs)  # Says what to write instead.
            raise
        for name, value in bound.arguments.items():
            # optax would inject an int as an int, and truncate a later 0.5 to 0.
            if name not in static and type(value) is int:
                default = parameters[name].default
                counts = isinstance(default, numbers.Integral) and default is not True
                bound.arguments[name] = value if counts else float(value)
        return injected(*bound.args, **bound.kwargs)

    return with_floats


def _keep_state(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Casts a state to the dtypes of `init`, which float32 numbers promote."""
    inner = optax.with_extra_args_support(inner)

    def update_fn(updates, state, params=None, **extra_args):
        updates, new = inner.update(updates, state, params, **extra_args)
        return updates, with_dtypes_of(state, new)

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)


def _is_dynamic(annotation: Any) -> bool:
    """Whether an argument is a number: a float or an array, but not a tree of them."""
    if annotation is inspect.Parameter.empty:
        return True
    trees = (collections.abc.Iterable, collections.abc.Mapping)
    if any(typing.get_origin(member) in trees for member in members(annotation)):
        return False
    return is_number(annotation)
