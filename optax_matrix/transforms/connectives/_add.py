"""A sum of transformations of the same input."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import check_weight
from optax_matrix.linalg.scale import widened
from optax_matrix.transforms.arguments import check_transformation

Weight = ArrayLike | Callable[[jax.Array], ArrayLike]


class AddState(NamedTuple):
    """State of `add`.

    Attributes:
        count: Number of updates, int32 ``()``; None if no weight is a schedule.
        parts: The state of each part.
    """

    count: Any
    parts: tuple[Any, ...]


def add(
    *parts: optax.GradientTransformation, weights: Sequence[Weight] | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""Sums the updates of transformations that all see the same input.

    .. math::
        \Delta_t = \sum_k w_k(t) \, f_k(G_t)

    Each part gets the parameters and the extra arguments of `update`, as in a chain,
    and keeps its own state. A part may be a chain, or another sum. The sum is computed
    in at least float32.

    Args:
        *parts: The transformations :math:`f_k`. `optax.identity` is the input itself.
        weights: A weight :math:`w_k` for each part: a number, which may be negative, or
            a schedule, whose count of updates is in the state. None for a plain sum.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``, in the widest dtype
        of the parts.

    Raises:
        ValueError: If a part is not a transformation, or if there is not one number or
            schedule for each.

    Examples:
        Two momenta; then a look-ahead, as in Nesterov's:

        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> fast, slow = om.momentum(0.5), om.momentum(0.75)
        >>> two = om.transforms.add(fast, slow, weights=(0.5, 1.0))
        >>> ahead = om.transforms.add(two, optax.identity(), weights=(1.0, 0.25))
        >>> w = {"w": jnp.array([[4.0, -8.0]])}
        >>> ahead.update(w, ahead.init(w))[0]["w"].tolist()
        [[3.0, -6.0]]

        The direction of Lion, whose sign has another rate (0.9) than its state (0.99):

        >>> parts, share = (om.momentum(0.99), optax.identity()), 0.9 / 0.99
        >>> blend = om.transforms.add(*parts, weights=(share, 1 - share))
        >>> lion = optax.chain(blend, optax.scale_by_sign())
    """
    if not parts:
        raise ValueError("`parts` must be at least one transformation, got none.")
    for k, part in enumerate(parts):
        check_transformation(f"parts[{k}]", part)
    each = (1.0,) * len(parts) if weights is None else _weights(weights, len(parts))
    txs = [optax.with_extra_args_support(part) for part in parts]
    is_scheduled = any(map(callable, each))

    def init_fn(params):
        count = jnp.zeros((), jnp.int32) if is_scheduled else None
        return AddState(count, tuple(tx.init(params) for tx in txs))

    def update_fn(updates, state, params=None, **extra_args):
        pairs = [
            tx.update(updates, old, params, **extra_args)
            for tx, old in zip(txs, state.parts, strict=True)
        ]
        now = [w(state.count) if callable(w) else w for w in each]
        new = jax.tree.map(lambda *xs: _summed(now, xs), *(x for x, _ in pairs))
        count = None if state.count is None else optax.safe_increment(state.count)
        return new, AddState(count, tuple(held for _, held in pairs))

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _weights(weights: Any, count: int) -> tuple[Weight, ...]:
    if not isinstance(weights, Sequence) or len(weights) != count:
        raise ValueError(
            f"`weights` must have one number or schedule for each of the {count} "
            f"parts, got {weights!r}; pass a tuple, or None for a plain sum."
        )
    for k, weight in enumerate(weights):
        check_weight(f"weights[{k}]", weight)
    return tuple(weights)


def _summed(weights: Sequence[Any], xs: Sequence[jax.Array]) -> jax.Array:
    dtype = jnp.result_type(*xs)
    wide = jnp.result_type(*map(widened, xs))
    terms = (
        jnp.asarray(w, wide) * x.astype(wide) for w, x in zip(weights, xs, strict=True)
    )
    return reduce(jnp.add, terms).astype(dtype)
