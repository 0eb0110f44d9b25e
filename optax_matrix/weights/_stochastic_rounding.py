"""Weights in bfloat16 that are rounded at random, without a float32 copy."""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Seed, checked
from optax_matrix.linalg.random import seeded
from optax_matrix.linalg.scale import widened
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


class StochasticRoundingState(NamedTuple):
    """State of `stochastic_rounding`.

    Attributes:
        count: Number of updates.
        inner_state: State of the inner optimizer, as for float32 weights.
    """

    count: Any
    inner_state: Any


@checked
def stochastic_rounding(
    inner: Transformation, *, seed: Seed = 0
) -> optax.GradientTransformationExtraArgs:
    r"""Trains bfloat16 weights without a float32 copy, by stochastic rounding.

    .. math::
        W_{t+1} = \begin{cases} \lceil x \rceil & \text{with probability }
        (x - \lfloor x \rfloor) / (\lceil x \rceil - \lfloor x \rfloor) \\
        \lfloor x \rfloor & \text{otherwise} \end{cases}
        \qquad x = W_t + \Delta_t

    where :math:`\lfloor x \rfloor` and :math:`\lceil x \rceil` are the neighbours of x
    in bfloat16. The expected weight is x. With rounding to nearest, a bfloat16 weight
    would not change while updates are below 0.2% of it.

    The inner optimizer runs in float32 and has the state of float32 weights;
    ``mu_dtype`` stores momenta in fewer bits. Float32 leaves are updated as without
    this wrapper.

    Args:
        inner: The optimizer of the whole tree, with its learning rate.
        seed: Seed of the draws, which also depend on the step and on the path of a
            leaf. They are the same on every mesh.

    Returns:
        A transformation, the last one of a chain. For bfloat16 weights it returns
        float32 updates, the difference between new and old weights, so that
        `optax.apply_updates` returns exactly the new ones (unless a weight shrinks by a
        factor of 65,000 in one step). Wrappers that cast updates to the dtype of
        gradients, such as `optax.apply_if_finite` and `inject_hyperparams`, belong
        inside of it.

    Raises:
        ValueError: If an argument is out of range; at `init`, if weights are
            float16 or float8; at `update`, without ``params``.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> import optax_matrix as om
        >>> params = {"kernel": jnp.ones((64, 64), jnp.bfloat16)}
        >>> tx = om.weights.stochastic_rounding(optax.sgd(0.001))
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> new = optax.apply_updates(params, updates)["kernel"]
        >>> jnp.unique(new).tolist()
        [0.99609375, 1.0]
        >>> print(f"{new.mean(dtype=jnp.float32):.3f}")
        0.999

    References:
        Zamirai et al., `Revisiting BFloat16 Training
        <https://arxiv.org/abs/2010.06192>`_, 2020.
    """
    inner = optax.with_extra_args_support(inner)

    def init_fn(params):
        jax.tree.map(is_half, params)
        count = jnp.zeros((), jnp.int32)
        return StochasticRoundingState(count, inner.init(wide(params)))

    def update_fn(updates, state, params=None, **extra_args):
        require_params(params)
        new, inner_state = inner.update(
            wide(updates), state.inner_state, wide(params), **extra_args
        )
        key = jax.random.fold_in(seeded(seed), state.count)

        def step(path, update, w):
            if not is_half(w):
                return update
            of_leaf = jax.random.fold_in(key, zlib.crc32(path.encode()))
            old = widened(w)
            return _rounded(old + update.astype(old.dtype), of_leaf) - old

        count = optax.safe_increment(state.count)
        new = finished(step, new, params)
        return new, StochasticRoundingState(count, inner_state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _rounded(x: jax.Array, key: jax.Array) -> jax.Array:
    """Rounds to bfloat16 at random, in float32."""
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    return jnp.where(jnp.isfinite(x), from_bits(upper_half(bits_of(x) + noise)), x)
