"""Weights in bfloat16, with their lower float32 bits in the optimizer's state."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import checked
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.weights._round import (
    bits_of,
    finished,
    from_bits,
    is_half,
    require_params,
    upper_half,
    wide,
)

RemainderDtype = Literal["int16", "int8"]


class StoreRemaindersState(NamedTuple):
    """State of `store_remainders`.

    Attributes:
        remainders: For each bfloat16 leaf integers of its shape, the lower bits of its
            weights; None for other leaves.
        inner_state: State of the inner optimizer, as for float32 weights.
    """

    remainders: Any
    inner_state: Any


@checked
def store_remainders(
    inner: Transformation, *, dtype: RemainderDtype = "int16"
) -> optax.GradientTransformationExtraArgs:
    r"""Trains bfloat16 weights as float32 ones, without a float32 copy of them.

    A float32 weight x is split into the nearest bfloat16 number W, which is the
    parameter, and a remainder c, which is state:

    .. math::
        \mathrm{bits}(x) = 2^{16} \, \mathrm{bits}(W) + c, \qquad
        -2^{15} \le c < 2^{15}

    The inner optimizer gets x as its parameters and has the state of float32 weights.
    With ``"int16"`` nothing is rounded: the steps are equal to the steps of float32
    weights with the gradients at W. A weight and its remainder need four bytes; a
    weight and a float32 copy need six. With ``"int8"`` they need three: the last 8 bits
    of x are rounded away, and changes below 2e-5 of a weight may be lost.

    Args:
        inner: The optimizer of the whole tree, with its learning rate.
        dtype: Dtype of the remainders.

    Returns:
        A transformation, the last one of a chain. For bfloat16 weights it returns
        float32 updates, the difference between new and old weights, so that
        `optax.apply_updates` returns exactly the new ones (unless a weight shrinks by a
        factor of 65,000 in one step). Wrappers that cast updates to the dtype of
        gradients, such as `optax.apply_if_finite` and `inject_hyperparams`, belong
        inside of it.

    Raises:
        ValueError: If an argument is out of range; at `init`, if weights are float16 or
            float8; at `update`, without ``params``.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> params = {"kernel": jnp.ones((2, 2), jnp.bfloat16)}
        >>> tx = om.weights.store_remainders(optax.sgd(0.001))
        >>> state = tx.init(params)
        >>> for _ in range(3):
        ...     grads = jax.tree.map(jnp.ones_like, params)
        ...     updates, state = tx.update(grads, state, params)
        ...     params = optax.apply_updates(params, updates)
        >>> params["kernel"][0, 0], state.remainders["kernel"].dtype
        (Array(0.996094, dtype=bfloat16), dtype('int16'))

    References:
        ``store_param_remainders`` of NVIDIA's Apex, with 16 bits.
    """
    inner = optax.with_extra_args_support(inner)
    kind = jnp.dtype(dtype)
    unit = 2 ** (
        16 - 8 * kind.itemsize
    )  # Of the last bit of a remainder, in bits of x.

    def init_fn(params):
        zero = lambda w: jnp.zeros_like(w, kind) if is_half(w) else None
        return StoreRemaindersState(
            jax.tree.map(zero, params), inner.init(wide(params))
        )

    def whole(w, c):
        return w if c is None else _joined(w, c.astype(jnp.int32) * unit)

    def update_fn(updates, state, params=None, **extra_args):
        require_params(params)
        held = jax.tree.structure(params).flatten_up_to(state.remainders)
        leaves, structure = jax.tree.flatten(params)
        for w, c in zip(leaves, held, strict=True):
            if c is not None and not is_half(w):
                raise ValueError(
                    "`params` must be bfloat16 where `init` saw bfloat16, got "
                    f"{w.dtype}; optax.apply_updates keeps dtypes, Equinox's does not."
                )
        exact = structure.unflatten(map(whole, leaves, held))
        new, inner_state = inner.update(
            wide(updates), state.inner_state, exact, **extra_args
        )
        remainders = list(held)

        def step(i, update, w, x):
            if not is_half(w):
                return update
            weight, remainders[i] = _split(x + update.astype(x.dtype), kind, unit)
            return weight - w.astype(x.dtype)

        places = structure.unflatten(range(len(leaves)))
        new = finished(
            lambda _, u, i, w, x: step(i, u, w, x), new, places, params, exact
        )
        kept = structure.unflatten(remainders)
        return new, StoreRemaindersState(kept, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _joined(w: jax.Array, rest: jax.Array) -> jax.Array:
    """The float32 weight; near zero for a weight that a user has set to zero."""
    bits = bits_of(w)
    sign = bits & jnp.uint32(0x80000000)
    size = jax.lax.bitcast_convert_type(bits ^ sign, jnp.int32)
    return from_bits(sign | jnp.maximum(size + rest, 0).astype(jnp.uint32))


def _split(x: jax.Array, kind: Any, unit: int) -> tuple[jax.Array, jax.Array]:
    """The bfloat16 nearest to x, in float32, and the remainder."""
    bits = bits_of(x)
    near = upper_half(bits + jnp.uint32(0x8000))
    rest = jax.lax.bitcast_convert_type(bits - near, jnp.int32)
    limits = jnp.iinfo(kind)
    rest = jnp.clip((rest + unit // 2) // unit, limits.min, limits.max)
    finite = jnp.isfinite(x)
    return jnp.where(finite, from_bits(near), x), jnp.where(finite, rest, 0).astype(
        kind
    )
