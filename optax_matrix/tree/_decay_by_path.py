"""Weight decay that differs between parameters, by path."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import Rate, check_not_negative, check_rate
from optax_matrix._paths import map_named, named_leaves
from optax_matrix.tree._by_path import chosen, table_of, warn_of_typos


def decay_by_path(
    rates: Mapping[str, ArrayLike], learning_rate: Rate = 1.0
) -> optax.GradientTransformationExtraArgs:
    r"""Adds decoupled weight decay, at rates that the paths of parameters choose.

    .. math::
        \Delta_t \mapsto \Delta_t - \eta_t \lambda_{\text{path}} W_t

    Put it at the end of a chain, after an optimizer with ``weight_decay=0.0``, and pass
    it the learning rate of that optimizer. Do not use it after `poet`, `oft`, `muonh`
    or `hyperball`, whose updates are finished steps.

    Args:
        rates: Rates :math:`\lambda` by regular expression, which is searched for in the
            path, as in `scale_by_path`. The first that is found counts; other
            parameters do not decay. A rate may be traced.
        learning_rate: The learning rate :math:`\eta`, a number or a schedule; 1 for a
            decay that is independent of it.

    Returns:
        A transformation of any tree, which needs parameters. `init` gives an
        `UnmatchedPatternWarning` for an expression that matches no parameter.

    Raises:
        ValueError: If an expression does not compile, or a rate is negative or no
            number; at `update`, without parameters.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax, optax_matrix as om
        >>> decay = om.decay_by_path({"head": 0.0, "kernel": 0.5}, learning_rate=0.25)
        >>> tx = optax.chain(optax.sgd(0.25), decay)
        >>> w = {name: {"kernel": jnp.ones((2, 2))} for name in ("up", "head")}
        >>> updates, _ = tx.update(w, tx.init(w), w)
        >>> [float(updates[name]["kernel"][0, 0]) for name in ("up", "head")]
        [-0.375, -0.25]
    """
    table = table_of("rates", rates, check_not_negative)
    check_rate("learning_rate", learning_rate)
    scale = optax.scale_by_learning_rate(learning_rate)

    def init_fn(params):
        warn_of_typos("`rates` of `decay_by_path`", table, params)
        return scale.init(params)

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError(
                "`params` must be passed to `update`: they decay; call "
                "tx.update(updates, state, params)."
            )
        one, state = scale.update(jnp.ones((), jnp.float32), state)
        weights = named_leaves(params)

        def decayed(path: str, update: Any) -> Any:
            rate = chosen(table, path)
            if rate is None:
                return update
            return (update + one * rate * weights[path]).astype(update.dtype)

        with jax.numpy_dtype_promotion("standard"):  # A traced rate is float32.
            return map_named(decayed, updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)
