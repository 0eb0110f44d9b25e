"""Quantization to four bits, with a scale for each row and each column."""

import itertools
import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from optax_matrix.linalg.scale import work_dtype

_VALUES = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0  # Of float4_e2m1fn.
_LARGEST = _VALUES[-1]
_SIGN = len(_VALUES)


def quantize_to_four(
    x: Float[Array, "..."],
    *,
    signed: bool = True,
    batch_axes: int = 0,
    noise: Float[Array, "..."] | None = None,
    old: tuple[UInt8[Array, "..."], Float[Array, "..."]] | None = None,
) -> tuple[UInt8[Array, "..."], Float[Array, "..."]]:
    r"""Round the numbers of matrices to four bits, two of them in a byte.

    .. math::
        \hat{x}_{ij} = \min(r_i, c_j) \, q_{k}, \qquad r_i = \max_j |x_{ij}|, \qquad
        c_j = \max_i |x_{ij}|

    With signs q are the 15 values of ``float4_e2m1fn`` over their largest: 0, and both
    signs of 1/12, 1/6, 1/4, 1/3, 1/2, 2/3 and 1. Without, they are 1/16, 2/16, ..., 1.
    There is no zero then, since optimizers divide by such numbers; a row or column of
    zeros stays exact. The largest number of a row or column is exact, so that numbers
    that are rounded again do not change.

    Args:
        x: Matrices; all axes but the last and ``batch_axes`` are rows.
        signed: Whether numbers may be negative.
        batch_axes: Number of leading axes that enumerate matrices.
        noise: As in `quantize`.
        old: Codes and scales. A matrix that is equal to their values keeps them.

    Returns:
        ``(codes, scales)``: bytes of two numbers each, neighbors in a row (the last one
        of an odd row is alone), and the scales of all rows and then of all columns, at
        least float32.
    """
    wide = x.astype(work_dtype(x.dtype))
    tiny = float(jnp.finfo(wide.dtype).tiny)
    wide = jnp.clip(wide, -1 / tiny, 1 / tiny)
    y = _as_matrices(wide, batch_axes)
    size = jnp.abs(y)
    peaks = [jnp.max(size, axis, initial=0.0) for axis in (-1, -2)]
    # `~(<)` and not `>=`, so that a NaN stays visible.
    scales = jnp.concatenate([jnp.where(p < tiny, 0, p) for p in peaks], axis=-1)
    bound = _bounds(scales, y.shape[-2])
    unit = size / jnp.where(bound == 0, 1, bound)
    threshold = 0.5 if noise is None else _as_matrices(noise, batch_axes)
    if signed:
        index = _above(unit, [x / _LARGEST for x in _VALUES], threshold)
        index = index + jnp.where((y < 0) & (index > 0), _SIGN, 0)
    else:
        index = _above(unit, [(k + 1) / 16 for k in range(16)], threshold)
    codes = _in_pairs(index)
    codes = codes.reshape(*x.shape[:-1], codes.shape[-1])
    if old is None:
        return codes, scales
    values = dequantize_from_four(*old, signed=signed)
    differs = _as_matrices(x != values, batch_axes)
    changed = jnp.any(differs, axis=(-2, -1))
    each = changed.reshape(changed.shape + (1,) * (x.ndim - batch_axes))
    kept = jnp.where(changed[..., None], scales, old[1])
    return jnp.where(each, codes, old[0]), kept


def dequantize_from_four(
    codes: UInt8[Array, "..."], scales: Float[Array, "..."], *, signed: bool = True
) -> Float[Array, "..."]:
    """Invert `quantize_to_four` up to its rounding.

    Args:
        codes: The codes.
        scales: The scales.
        signed: As in `quantize_to_four`.

    Returns:
        The numbers, in the dtype of ``scales``.
    """
    both = _as_matrices(codes, scales.ndim - 1).astype(jnp.int32)
    *batch, rows, bytes_ = both.shape
    columns = scales.shape[-1] - rows
    index = jnp.stack([both & 15, both >> 4], axis=-1)
    index = index.reshape(*batch, rows, 2 * bytes_)[..., :columns]
    number = lambda index: index.astype(scales.dtype)
    values = _signed_value(index, number) if signed else number(index + 1) / 16
    numbers = values * _bounds(scales, rows)
    return numbers.reshape(*codes.shape[:-1], columns)


def _as_matrices(x: Array, batch_axes: int) -> Array:
    """Reshape to ``(*batch, rows, columns)``."""
    rows = math.prod(x.shape[batch_axes:-1])
    return x.reshape(*x.shape[:batch_axes], rows, x.shape[-1])


def _bounds(scales: Array, rows: int) -> Array:
    """The scale of each number: that of its row or its column, the smaller one."""
    return jnp.minimum(scales[..., :rows, None], scales[..., None, rows:])


def _signed_value(index: Array, number: Callable[[Array], Array]) -> Array:
    """The value of a code: a sign, two bits of exponent and one of mantissa."""
    exponent, half = (index & 7) >> 1, number(index & 1) / 2
    power = number(jnp.left_shift(jnp.ones_like(exponent), exponent)) / 2
    size = jnp.where(exponent == 0, half, (1 + half) * power) / _LARGEST
    return jnp.where(index >= _SIGN, -size, size)


def _above(unit: Array, values: list, threshold: float | Array) -> Array:
    """The index of a value adjacent to each number in [0, 1].

    A number between two values is rounded up if it is more than ``threshold`` of the
    way from the lower to the upper one; one below the first value is.
    """
    index = jnp.zeros(unit.shape, jnp.int32)
    for low, high in itertools.pairwise(values):
        index = index + (unit - low > threshold * (high - low)).astype(jnp.int32)
    return index


def _in_pairs(index: Array) -> Array:
    """Two codes in a byte, the first one in its lower half."""
    index = jnp.pad(index, [*[(0, 0)] * (index.ndim - 1), (0, index.shape[-1] % 2)])
    pairs = index.reshape(*index.shape[:-1], index.shape[-1] // 2, 2)
    return (pairs[..., 0] + 16 * pairs[..., 1]).astype(jnp.uint8)
