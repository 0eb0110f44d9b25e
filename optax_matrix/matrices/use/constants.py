"""What is known of values that neither inputs nor parameters enter."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from optax_matrix.matrices.use.primitives import RANDOM
from optax_matrix.matrices.use.views import Value

_LARGEST = 1 << 22  # Entries of an array that is looked at.
_SAME = """
broadcast_in_dim clamp convert_element_type copy reshape reduce_precision select_n
squeeze stop_gradient transpose
"""
_SAME_ENTRIES = frozenset(_SAME.split())


def of_array(x: Any) -> Value:
    """An array that a function closes over."""
    shape = tuple(jnp.shape(x))
    return Value(shape, marks=frozenset(_marks(x)))


def of_constants(name: str, ins: Sequence[Value], shapes: Any) -> list[Value]:
    """The results of a primitive of constants, by its name."""
    has = lambda mark: any(mark in v.marks for v in ins)
    marks = {"noise"} if has("noise") else set()
    iotas = sum("iota" in v.marks for v in ins)
    if name == "iota" or (iotas and name in (*_SAME_ENTRIES, "add", "sub")):
        marks.add("iota")
    if name == "eq" and iotas == 2:
        marks.add("eye")
    if name in _SAME_ENTRIES:
        own = ins[1:] if name in ("select_n", "clamp") else ins
        same = [{"eye", "zero"} & v.marks for v in own if v.shape or len(own) == 1]
        marks |= set.intersection(*map(set, same)) if same else set()
    if name in RANDOM:
        marks.add("noise")
    return [Value(shape, marks=frozenset(marks)) for shape in shapes]


def is_key(dtype: Any) -> bool:
    """Whether values of a type are random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _marks(x: Any) -> set[str]:
    is_known = isinstance(
        x, np.ndarray | np.generic | jax.Array | int | float | complex
    )
    if not is_known or isinstance(x, jax.core.Tracer):
        return set()
    if not getattr(x, "is_fully_addressable", True):
        return set()
    if is_key(getattr(x, "dtype", float)):
        return {"noise"}
    if np.size(x) > _LARGEST:
        return set()
    entries = np.squeeze(np.asarray(x))
    if not entries.any():
        return {"zero"}
    if entries.ndim == 1 and jnp.issubdtype(entries.dtype, jnp.integer):
        return {"iota"} if np.array_equal(entries, np.arange(entries.size)) else set()
    is_square = entries.ndim == 2 and entries.shape[0] == entries.shape[1]
    return {"eye"} if is_square and (entries == np.eye(len(entries))).all() else set()
