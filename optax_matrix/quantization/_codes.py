"""Block-wise quantization to eight bits, with the dynamic map of 8-bit optimizers."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from optax_matrix._arguments import PositiveInt, checked
from optax_matrix.linalg.scale import work_dtype

_DECADES = 7  # Code magnitudes reach from 1 down to 10^-7.
_ZERO = 127  # The code of zero, signed; unsigned it is 0.


@checked
def quantize(
    x: Float[Array, "..."],
    block_size: PositiveInt = 256,
    *,
    signed: bool = True,
    batch_axes: int = 0,
    noise: Float[Array, "..."] | None = None,
    old: tuple[UInt8[Array, "..."], Float[Array, "..."]] | None = None,
) -> tuple[UInt8[Array, "..."], Float[Array, "..."]]:
    r"""Round numbers to one byte each, relative to the largest of their block.

    .. math::
        \hat{x} = s \, q_c, \qquad s = \max_{\text{block}} |x|, \qquad
        c = \arg\min_c |x / s - q_c|

    The 256 values q are zero, one and the midpoints of the steps of the dynamic map,
    which divides :math:`10^{i-7}` to :math:`10^{i-6}` into :math:`2^i` equal steps for
    i = 0, ..., 6 and each sign (into twice as many without signs).

    Args:
        x: Floating array of any shape.
        block_size: How many consecutive numbers share a scale. Blocks divide the rows
            if the length of a row is a multiple of ``block_size``; otherwise they
            divide all axes after ``batch_axes``, flattened, and the last is shorter.
        signed: Whether numbers may be negative.
        batch_axes: Number of leading axes that blocks do not extend across.
        noise: Uniform numbers in [0, 1) of the shape of x, for stochastic rounding;
            None rounds to the nearest value.
        old: Codes and scales. A block of x that is equal to their values keeps them.
            Rounded again, a block whose largest entry is negative would shrink.

    Returns:
        ``(codes, scales)``: uint8 codes of the shape of x; scales, at least float32,
        whose last axis counts the blocks.

    Note:
        Zeros stay exact. With ``signed=False`` no positive number becomes zero, since
        optimizers divide by such numbers. Infinity is treated as :math:`2^{126}`. A NaN
        turns its block into NaN.

    Raises:
        ValueError: If ``block_size`` is not a positive int.

    Examples:
        >>> import jax.numpy as jnp
        >>> codes, scales = quantize(jnp.array([0.0, 1e-3, -0.5, 2.0]))
        >>> dequantize(codes, scales).round(4).tolist()
        [0.0, 0.000999..., -0.495..., 2.0]

    References:
        Dettmers et al., `8-bit Optimizers via Block-wise Quantization
        <https://arxiv.org/abs/2110.02861>`_, 2022, Section 2 and the map that its
        library builds. Deviation: positive numbers round up from zero.
    """
    wide = x.astype(work_dtype(x.dtype))
    tiny = float(jnp.finfo(wide.dtype).tiny)
    wide = jnp.clip(wide, -1 / tiny, 1 / tiny)  # The reciprocals must be normal.
    blocks = _blocks(wide, block_size, batch_axes)
    scales = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True, initial=0.0)
    # `~(<)` and not `>=`, so that a NaN stays visible.
    scales = jnp.where(scales < tiny, jnp.zeros_like(scales), scales)
    unit = blocks / jnp.where(scales == 0, jnp.ones_like(scales), scales)
    threshold = 0.5 if noise is None else _blocks(noise, block_size, batch_axes)
    # The nearest code by arithmetic, elementwise; there is no table to gather from.
    index = _nearest(jnp.abs(unit), signed, threshold)
    if signed:
        negative = jnp.minimum(index, _ZERO)  # -1 has no code.
        index = _ZERO + jnp.where(unit < 0, -negative, index)
    else:
        index = jnp.where(unit > 0, jnp.maximum(index, 1), index)
    index = jnp.where(scales == 0, _ZERO if signed else 0, index)
    codes = _unblocked(index.astype(jnp.uint8), x.shape, batch_axes)
    if old is None:
        return codes, scales[..., 0]
    differs = x != dequantize(*old, block_size, signed=signed, batch_axes=batch_axes)
    changed = jnp.any(_blocks(differs, block_size, batch_axes), axis=-1, keepdims=True)
    every = _unblocked(jnp.broadcast_to(changed, blocks.shape), x.shape, batch_axes)
    kept = jnp.where(changed[..., 0], scales[..., 0], old[1])
    return jnp.where(every, codes, old[0]), kept


def dequantize(
    codes: UInt8[Array, "..."],
    scales: Float[Array, "..."],
    block_size: int = 256,
    *,
    signed: bool = True,
    batch_axes: int = 0,
) -> Float[Array, "..."]:
    """Invert `quantize` up to its rounding.

    Args:
        codes: The codes.
        scales: The scales.
        block_size: As in `quantize`.
        signed: As in `quantize`.
        batch_axes: As in `quantize`.

    Returns:
        Numbers in the shape of ``codes`` and the dtype of ``scales``.

    Examples:
        >>> import jax.numpy as jnp
        >>> dequantize(*quantize(jnp.array([0.25, 4.0]))).round(3).tolist()
        [0.248..., 4.0]
    """
    # A short last block is padded with arbitrary codes, whose values are cut off.
    index = _blocks(codes, block_size, batch_axes).astype(jnp.int32)
    if signed:
        index = index - _ZERO
    sign = jnp.sign(index).astype(scales.dtype)
    values = sign * _value(jnp.abs(index), signed, scales.dtype)
    return _unblocked(scales[..., None] * values, codes.shape, batch_axes)


def _blocks(x: Array, size: int, batch_axes: int) -> Array:
    """Reshape to ``(..., blocks, size)``; the last block is padded with zeros."""
    if x.ndim and x.shape[-1] % size == 0:
        # Blocks within rows: an array that is sharded over rows need not move.
        return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
    batch, count = x.shape[:batch_axes], math.prod(x.shape[batch_axes:])
    flat = x.reshape(*batch, count)
    flat = jnp.pad(flat, [*[(0, 0)] * batch_axes, (0, -count % size)])
    return flat.reshape(*batch, -(-count // size), size)


def _unblocked(blocks: Array, shape: tuple[int, ...], batch_axes: int) -> Array:
    if math.prod(blocks.shape) == math.prod(shape):
        return blocks.reshape(shape)
    count = math.prod(shape[batch_axes:])
    flat = blocks.reshape(*shape[:batch_axes], -1)
    return flat[..., :count].reshape(shape)


def _value(index: Array, signed: bool, dtype: jnp.dtype) -> Array:
    """The values of the map in ascending order: 0, the midpoints of the steps, 1."""
    place = index + (0 if signed else 1)
    level = 31 - jax.lax.clz(jnp.maximum(place, 1))
    decade = level - (0 if signed else 1)
    steps = jax.lax.shift_left(jnp.ones_like(level), level).astype(dtype)
    fraction = (place.astype(dtype) + 0.5) / steps - 1
    value = _power_of_ten(decade, dtype) * (0.1 + 0.9 * fraction)
    value = jnp.where(decade >= _DECADES, jnp.ones_like(value), value)
    return jnp.where(index == 0, jnp.zeros_like(value), value)


def _nearest(size: Array, signed: bool, threshold: float | Array) -> Array:
    """The index of a value adjacent to each number in [0, 1].

    A number between two values is rounded up if it is more than ``threshold`` of the
    way from the lower to the upper one.
    """
    decade = jnp.zeros(size.shape, jnp.int32)
    for k in range(1, _DECADES):
        decade = decade + (size > 10.0 ** (k - _DECADES)).astype(jnp.int32)
    level = decade + (0 if signed else 1)
    steps = jax.lax.shift_left(jnp.ones_like(level), level)
    along = (size / _power_of_ten(decade, size.dtype) - 0.1) / 0.9
    step = jnp.floor(along * steps.astype(size.dtype)).astype(jnp.int32)
    step = jnp.clip(step, 0, steps - 1)
    index = steps + step - (0 if signed else 1)
    over = _value(index, signed, size.dtype) > size
    below = index - over.astype(jnp.int32)
    low = _value(below, signed, size.dtype)
    gap = _value(below + 1, signed, size.dtype) - low
    return below + (size - low > threshold * gap).astype(jnp.int32)


def _power_of_ten(decade: Array, dtype: jnp.dtype) -> Array:
    """``10 ** (decade - 6)``, elementwise, without a gather from a table."""
    power = jnp.full(decade.shape, 10.0 ** (1 - _DECADES), dtype)
    for k in range(1, _DECADES):
        power = jnp.where(decade >= k, 10.0 ** (k + 1 - _DECADES), power)
    return power
