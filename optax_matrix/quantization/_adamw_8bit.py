"""AdamW with quantized moments."""

from typing import Any

import optax

from optax_matrix._arguments import Decay, NotNegative, Rate, checked
from optax_matrix.transforms import quantize_state


@checked
def adamw_8bit(
    learning_rate: Rate,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 1e-8,
    weight_decay: Rate = 1e-4,
    weight_decay_mask: Any = None,
    block_size: int = 256,
    min_size: int = 4096,
    seed: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    """AdamW with both moments in eight bits: 2.03 bytes of state per parameter.

    This is `optax.adamw` inside `quantize_state`.

    Args:
        learning_rate: Learning rate, a number or a schedule.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment.
        eps: Term added to the root of the second moment.
        weight_decay: Decoupled weight decay, a number or a schedule.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        block_size: Number of entries that share a scale.
        min_size: Number of entries below which the moments of a leaf are not quantized.
        seed: Seed of stochastic rounding; None rounds to the nearest value.

    Returns:
        An optimizer for any tree.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx, params = om.adamw_8bit(1e-3), {"w": jnp.ones((64, 64))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> round(float(updates["w"][0, 0]), 4)
        -0.001
    """
    adamw = optax.adamw(
        learning_rate,
        b1=b1,
        b2=b2,
        eps=eps,
        weight_decay=weight_decay,
        mask=weight_decay_mask,
    )
    return quantize_state(adamw, block_size=block_size, min_size=min_size, seed=seed)
