"""Learning rates that differ between parameters, by path."""

from collections.abc import Mapping
from typing import Any

import jax
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import check_not_negative
from optax_matrix._paths import map_named
from optax_matrix.tree._by_path import chosen, table_of, warn_of_typos


def scale_by_path(
    factors: Mapping[str, ArrayLike],
) -> optax.GradientTransformationExtraArgs:
    """Multiplies the updates of parameters by factors that their paths choose.

    At the end of a chain, after an optimizer, a factor multiplies the learning rate of
    these parameters, and so their weight decay, too. Schedules of the optimizer remain.
    Do not use it after `poet`, `oft`, `muonh` or `hyperball`, whose updates are
    finished steps.

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
    table = table_of("factors", factors, _check)

    def init_fn(params):
        warn_of_typos("`factors` of `scale_by_path`", table, params)
        return optax.EmptyState()

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args

        def scaled(path: str, update: Any) -> Any:
            factor = chosen(table, path)
            return update if factor is None else (factor * update).astype(update.dtype)

        with jax.numpy_dtype_promotion("standard"):  # A traced factor is float32.
            return map_named(scaled, updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _check(name: str, factor: Any) -> None:
    if callable(factor):
        raise ValueError(
            f"`{name}` must be a number, got the function {factor!r}; for a schedule "
            "of its own give that part another recipe, by optax.partition."
        )
    check_not_negative(name, factor)
