"""Optimizers of optax that store their moments in fewer bits between steps."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import optax

from optax_matrix._arguments import Decay, NotNegative, Rate, checked
from optax_matrix.linalg.scale import widened
from optax_matrix.quantization.packing import QuantizedState
from optax_matrix.quantization.quantizer import SIGNED, UNSIGNED, Quantizer
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.wrappers import keep_dtype

_OPAQUE: Any = object()  # Stands for arrays when `optax.tree.map_params` calls `init`.


@checked
def quantize_state(
    inner: Transformation,
    *,
    signed: Collection[str] = SIGNED,
    unsigned: Collection[str] = UNSIGNED,
    bits: int = 8,
    block_size: int = 256,
    min_size: int = 4096,
    batch_axes: int = 0,
    seed: int | None = None,
    ids: Mapping[str, Any] | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Stores the moments of a transformation in eight or four bits between steps.

    With eight bits each block of numbers has a scale, its largest magnitude, and each
    number is rounded to one of 256 values relative to that scale (`quantize`). With
    four, an m x n matrix has a scale for each row and each column, and a number is
    rounded relative to the smaller one of its two: a byte has two numbers, and a number
    takes 0.5 + 4/m + 4/n bytes. Those with signs are 0 and both signs of 1/12, 1/6,
    1/4, 1/3, 1/2, 2/3 and 1 then (``float4_e2m1fn``), those without are 1/16, 2/16,
    ..., 1. Vectors are stored in eight bits. Every update runs
    ``inner`` in float32, on moments, gradients and parameters, and then quantizes the
    moments; moments that are not quantized are float32. A moment that an update does
    not change keeps its codes. Updates have the dtype of the parameters, or without
    parameters the dtype of the incoming updates.

    Inside `on_matrices` pass ``batch_axes=1``, so that no block reaches across two
    matrices. In a recipe pass ``placement=om.quantized()``, which does this.

    Args:
        inner: Any transformation whose state consists of NamedTuples, as in optax.
        signed: Names of the state's fields whose arrays may have any sign.
        unsigned: Names of the fields without negative numbers. Positive numbers in them
            stay positive, because updates are divided by them.
        bits: 8 or 4.
        block_size: Number of entries that share a scale, with eight bits.
        min_size: Number of entries (per matrix) below which an array is not quantized.
        batch_axes: Number of leading axes that enumerate matrices: 1 for stacks.
        seed: Seed of stochastic rounding; None rounds to the nearest value.
        ids: Identity of each matrix, uint32 ``(batch, k)`` per leaf
            (`stacks.Group.ids`), for rounding that does not depend on grouping.

    Returns:
        A transformation whose state has the ``inner_state`` with codes in the place of
        large moments, their ``scales`` and a ``count``. Its `init` warns if the state
        has large arrays but none in a named field.

    Raises:
        ValueError: If an argument is out of range, or a name is both signed and
            unsigned; at `init`, if ``inner`` contains an `on_matrices` that is not
            `quantized`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.quantization.quantize_state(optax.adam(1e-3))
        >>> state = tx.init({"w": jnp.ones((64, 128)), "b": jnp.ones(128)})
        >>> adam = state.inner_state[0]
        >>> adam.mu["w"].dtype, adam.mu["b"].dtype
        (dtype('uint8'), dtype('float32'))

    References:
        Dettmers et al., `8-bit Optimizers via Block-wise Quantization
        <https://arxiv.org/abs/2110.02861>`_, 2022, with blocks of 2048; later versions
        of its library use 256. Deviation: second moments never round down to zero. Li
        et al., `Memory Efficient Optimizers with 4-bit States
        <https://arxiv.org/abs/2309.01507>`_, 2023, for four bits. Deviation: first
        moments have scales of rows and columns, too, and the values above; there they
        have blocks of 128 and a dynamic map.
    """
    quantizer = Quantizer.of(
        signed=signed,
        unsigned=unsigned,
        bits=bits,
        block_size=block_size,
        min_size=min_size,
        batch_axes=batch_axes,
        seed=seed,
        ids=ids,
    )
    inner = optax.with_extra_args_support(inner)

    wide = lambda tree: jax.tree.map(widened, tree)

    def init_fn(params):
        state = inner.init(wide(params))
        if type(params).__name__ == "_ParamsPlaceholder":
            return QuantizedState(state, _OPAQUE, None if seed is None else _OPAQUE)
        ours = quantizer.beside(params)
        ours.warn_if_idle(state)
        return ours.pack(state)

    def update_fn(updates, state, params=None, **extra_args):
        ours = quantizer.beside(updates)
        old = ours.unpack(state)
        updates, new = inner.update(wide(updates), old, wide(params), **extra_args)
        return updates, ours.repack(new, state)

    return keep_dtype(optax.GradientTransformationExtraArgs(init_fn, update_fn))


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
