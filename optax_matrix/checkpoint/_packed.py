"""Moments in eight or four bits, within states and within their portable form.

The portable form names the numbers of a quantized state as those of a plain one, so
that either is restored into the other. Beside codes, under ``scales``, are the scales
of their blocks and what the codes mean.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from optax_matrix._paths import key_name, leaves_with_keys
from optax_matrix.checkpoint._kinds import typed
from optax_matrix.quantization.packing import (
    LABEL,
    Packing,
    QuantizedState,
    packed_at,
)

_SCALES = re.compile(rf"(?P<lead>(?:.*?/)?)scales/(?P<label>{LABEL})/(?P<rest>.+)")
_ROUNDINGS = re.compile(r"(.*/)?scales/count")
_INNER = "inner_state"


class Packed(NamedTuple):
    """The role of a leaf in a moment of eight or four bits.

    Attributes:
        packing: What the codes mean.
        batch_axes: Leading axes that blocks do not extend across.
        codes: Whether these are the codes; otherwise they are the scales.
        moment: The keys of the moment in a plain state; of an entry, its place.
    """

    packing: Packing
    batch_axes: int
    codes: bool
    moment: Any


def quantized_nodes(state: Any, above: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every quantized state within a state with its keys, outer ones first."""
    is_one = lambda node: isinstance(node, QuantizedState)
    for keys, node in leaves_with_keys(state, is_one):
        if is_one(node):
            yield (keys := above + keys), node
            yield from quantized_nodes(node.inner_state, (*keys, GetAttrKey(_INNER)))


def as_plain(
    keys: tuple, nodes: Mapping[tuple, QuantizedState]
) -> tuple[tuple, Packed | None]:
    """The keys that a leaf has in a plain state, and how it is packed."""
    packed = None
    for at in sorted(nodes, key=len, reverse=True):
        if keys[: len(at)] != at:
            continue
        field, rest = key_name(keys[len(at)]), keys[len(at) + 1 :]
        if field == _INNER:
            if packed is None and (found := packed_at(nodes[at].scales, rest)):
                packing, scales = found
                packed = Packed(packing, jnp.ndim(scales) - 1, True, at + rest)
            keys = at + rest
        elif field == "scales":
            found = packed_at(nodes[at].scales, rest[1:])
            packing, scales = found or (Packing.of(key_name(rest[0])), 0)
            packed = Packed(packing, jnp.ndim(scales) - 1, False, at + rest[1:])
        else:  # A field of the wrapper, not of the state inside.
            keys = (*at, GetAttrKey("scales"), *keys[len(at) :])
    return keys, packed


class Numbers:
    """The numbers of a portable form, stored as a state stores them."""

    def __init__(self, portable: Mapping[str, Any]):
        self._portable = portable
        self._scales: dict[str, tuple[Packing, str]] = {}
        for key in portable:
            if (found := _SCALES.fullmatch(key)) is None:
                continue
            codes = found["lead"] + found["rest"]
            if getattr(portable.get(codes), "dtype", None) == np.uint8:
                self._scales[codes] = Packing.of(found["label"]), key

    def keys_of(self, key: str) -> set[str]:
        """The keys of an array: its own, and that of its scales."""
        return {key, self._scales[key][1]} if key in self._scales else {key}

    def of(self, key: str, packed: Packed | None) -> Any:
        """An array, or codes or scales of it if the state has those."""
        value, held = self._portable[key], None
        if key in self._scales:
            packing, at = self._scales[key]
            held = self._portable[at]
            if packed and (packing, np.ndim(held) - 1) == packed[:2]:
                return value if packed.codes else held
            value = packing.unpack(jnp.asarray(value), jnp.asarray(held))
        if packed is None:
            return value
        value = jnp.asarray(typed(value, np.dtype(np.float32), key))
        codes, scales = packed.packing.pack(value, packed.batch_axes)
        return codes if packed.codes else scales


def is_rounding(key: str, value: Any) -> bool:
    """Whether this is the count of roundings, which a quantized state may start anew.

    The state of a parameter that is called ``scales/count`` is not an integer scalar.
    """
    is_count = not np.ndim(value) and np.asarray(value).dtype.kind in "iu"
    return is_count and _ROUNDINGS.fullmatch(key) is not None
