"""The meaning of the codes of a state in eight or four bits, and their numbers."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from optax_matrix._mesh import keep_sharding
from optax_matrix._paths import key_name, leaves_with_keys, map_with_keys
from optax_matrix.quantization._codes import dequantize, quantize
from optax_matrix.quantization._four_bits import dequantize_from_four, quantize_to_four

LABEL = r"(signed|unsigned)_(\d+|rows_columns)"

# For calls outside of other jits, as in `init`: compiles one program per shape.
_STATIC = ("block_size", "signed", "batch_axes")
_quantize = jax.jit(quantize, static_argnames=_STATIC)
_dequantize = jax.jit(dequantize, static_argnames=_STATIC)
_quantize_to_four = jax.jit(quantize_to_four, static_argnames=_STATIC[1:])
_dequantize_from_four = jax.jit(dequantize_from_four, static_argnames=_STATIC[1])


class QuantizedState(NamedTuple):
    """A state whose large moments are stored in eight or four bits per number.

    Attributes:
        inner_state: The inner state, with large moments replaced by uint8 codes of the
            same shape; with four bits a byte has two neighbors of the last axis.
        scales: For each of these moments the largest magnitude of each block (with four
            bits, of each row and column), at least float32, in nested dicts whose keys
            are what the codes mean (``signed_256``, ``signed_rows_columns``), and then
            the path to the moment.
        count: Number of updates; None if rounding is to the nearest value.
    """

    inner_state: Any
    scales: Any
    count: Any


class Packing(NamedTuple):
    """The meaning of codes. The state has its label as a key, and reading checks it.

    Attributes:
        signed: As in `quantize`.
        block_size: As in `quantize`; None for four bits, with a scale for each row and
            column.
    """

    signed: bool
    block_size: int | None

    @property
    def label(self) -> str:
        """``signed_256``, say."""
        sign = "signed" if self.signed else "unsigned"
        return f"{sign}_{self.block_size or 'rows_columns'}"

    @classmethod
    def of(cls, label: str) -> "Packing":
        """The packing of a label."""
        found = re.fullmatch(LABEL, label)
        if found is None:
            raise ValueError(
                "`state` must say how its moments are stored in fewer bits, got "
                f"{label!r} in place of 'signed_256' or the like; it was written by "
                "another version of optax_matrix, whose codes this one cannot read."
            )
        size = int(found[2]) if found[2].isdecimal() else None
        return cls(found[1] == "signed", size)

    def pack(self, x: jax.Array, batch_axes: int, **given: Any) -> tuple:
        """Codes and scales, as `quantize` returns them."""
        if self.block_size is None:
            kind: Any = {"signed": self.signed, "batch_axes": batch_axes}
            return _quantize_to_four(x, **kind, **given)
        return _quantize(x, **self._asdict(), batch_axes=batch_axes, **given)

    def unpack(self, codes: jax.Array, scales: jax.Array) -> jax.Array:
        """The numbers; the axes of the scales determine how far a block extends."""
        run = functools.partial(_dequantize_from_four, signed=self.signed)
        if self.block_size is not None:
            options = {**self._asdict(), "batch_axes": scales.ndim - 1}
            run = functools.partial(_dequantize, **options)
        return keep_sharding(run, codes, scales)


def packed_at(scales: Mapping[str, Any], keys: tuple) -> tuple[Packing, Any] | None:
    """The packing and the scales of a moment, by its path; None if it has none."""
    for label, held in scales.items():
        if (found := _look_up(held, keys)) is not None:
            return Packing.of(label), found
    return None


def unpacked(state: QuantizedState) -> Any:
    """The inner state, with moments at least float32."""
    for label in state.scales:
        Packing.of(label)

    def restore(keys, leaf):
        found = packed_at(state.scales, keys)
        return leaf if found is None else found[0].unpack(leaf, found[1])

    return map_leaves(restore, state.inner_state)


def is_opaque(node: Any) -> bool:
    """Whether a node is a state of `on_matrices` or is already quantized."""
    return isinstance(node, QuantizedState) or hasattr(node, "manifest")


def leaves_of(state: Any) -> list[tuple[Any, Any]]:
    """The leaves of a state with their paths; opaque nodes are leaves."""
    return leaves_with_keys(state, is_opaque)


def map_leaves(f: Callable[[tuple, Any], Any], state: Any) -> Any:
    """`jax.tree.map` of ``f(path, leaf)``; opaque nodes are leaves."""
    return map_with_keys(f, state, is_leaf=is_opaque)


def _look_up(scales: Any, keys: tuple) -> Any:
    for name in map(key_name, keys):
        if not isinstance(scales, dict) or name not in scales:
            return None
        scales = scales[name]
    return None if isinstance(scales, dict) else scales
