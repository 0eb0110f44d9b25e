"""Weight decay of the entries that the update moves towards zero."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_matrix._arguments import Rate, checked
from optax_matrix.transforms.arguments import Mask
from optax_matrix.transforms.weight_size._decayed_weights import add_decayed_weights


@checked
def add_cautious_decay(
    weight_decay: Rate, mask: Mask | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""Adds decayed weights where they have the sign of the update.

    .. math::
        \Delta_t \mapsto \Delta_t + \lambda \, 1[\Delta_t \odot W_t \ge 0] \odot W_t

    As `optax.add_decayed_weights`, it stands before the learning rate, which turns the
    sign: decay never works against the update of an entry.

    Args:
        weight_decay: The rate :math:`\lambda`, a number or a schedule.
        mask: Tree or prefix tree of True and False, or a function from the parameters
            to one, as in `optax.add_decayed_weights`.

    Returns:
        A transformation of any tree, with the state of `optax.add_decayed_weights`. It
        needs parameters.

    Raises:
        ValueError: If ``weight_decay`` is negative or ``mask`` is no mask.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.add_cautious_decay(0.5)
        >>> w, update = jnp.array([1.0, 1.0, -1.0]), jnp.array([0.5, -0.5, -0.5])
        >>> tx.update(update, tx.init(w), w)[0].tolist()
        [1.0, -0.5, -1.0]

    References:
        Chen et al., `Cautious Weight Decay <https://arxiv.org/abs/2510.12402>`_, 2025.
    """
    decay = add_decayed_weights(weight_decay, mask)

    def update_fn(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            return decay.update(updates, state, None)

        def agreeing(update: Any, w: Any) -> Any:
            if update is None:
                return w
            # Signs, as the product of two small numbers may be zero.
            return jnp.where(jnp.sign(update) * jnp.sign(w) >= 0, w, 0)

        is_none = lambda x: x is None
        kept = jax.tree.map(agreeing, updates, params, is_leaf=is_none)
        with jax.numpy_dtype_promotion("standard"):  # A traced rate is float32.
            return decay.update(updates, state, kept)

    return optax.GradientTransformationExtraArgs(decay.init, update_fn)
