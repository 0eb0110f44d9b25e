"""Learning rates that differ between parameters, by path."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import check_not_negative
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.matrices.rules import UnmatchedPatternWarning


def scale_by_path(
    factors: Mapping[str, ArrayLike],
) -> optax.GradientTransformationExtraArgs:
    """Multiplies the updates of parameters by factors that their paths choose.

    At the end of a chain, after an optimizer, a factor is one of the learning rate, and
    so of its weight decay, too. Schedules of the optimizer remain. Updates of `poet`,
    `oft`, `muonh` and `hyperball` are finished steps, which must not be scaled.

    Args:
        factors: Factors by regular expression, which is searched for in the path, as in
            ``"layers/0/mlp/up/kernel"``. The first that is found counts; other
            parameters keep their updates. A factor may be traced.

    Returns:
        A stateless transformation of any tree. `init` gives an
        `UnmatchedPatternWarning` for an expression that matches no parameter.

    Raises:
        ValueError: If an expression does not compile, or a factor is negative or no
            number.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax, optax_matrix as om
        >>> tx = optax.chain(optax.sgd(1.0), om.scale_by_path({"lora_b": 16.0}))
        >>> params = {"lora_a": jnp.ones((3, 2)), "lora_b": jnp.ones((2, 4))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> float(updates["lora_a"][0, 0]), float(updates["lora_b"][0, 0])
        (-1.0, -16.0)
    """
    if not isinstance(factors, Mapping):
        raise ValueError(
            "`factors` must be a dict of numbers by regular expression, as in "
            f"{{'lora_b': 16.0}}, got {factors!r}."
        )
    table = [_entry(pattern, factor) for pattern, factor in factors.items()]

    def init_fn(params):
        paths = list(named_leaves(params))
        for pattern, _ in table:
            if paths and not any(map(pattern.search, paths)):
                shown = ", ".join(paths[:5]) + (", ..." if len(paths) > 5 else "")
                warnings.warn(
                    f"`factors` of `scale_by_path` has {pattern.pattern!r}, which "
                    f"matches none of the parameters {shown}",
                    UnmatchedPatternWarning,
                    stacklevel=2,
                )
        return optax.EmptyState()

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args

        def scaled(path: str, update: Any) -> Any:
            found = (f for pattern, f in table if pattern.search(path))
            factor = next(found, None)
            return update if factor is None else (factor * update).astype(update.dtype)

        with jax.numpy_dtype_promotion("standard"):  # A traced factor is float32.
            return map_named(scaled, updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _entry(pattern: Any, factor: ArrayLike) -> tuple[re.Pattern, ArrayLike]:
    try:
        expression = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`factors` must have regular expressions, got {pattern!r}: {error}."
        ) from None
    if callable(factor):
        raise ValueError(
            f"`factors` must have numbers, got the function {factor!r} for "
            f"{pattern!r}; for a schedule of its own give that part another recipe, by "
            "optax.partition."
        )
    check_not_negative(f"factors[{pattern!r}]", factor)
    return expression, factor
