"""Optimizer state by parameter path, free of stacks, for checkpoints that must last."""

import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from optax_matrix.layout._on_matrices import OnMatricesState
from optax_matrix.layout._paths import key_name, named_leaves, path_name

Rename = Mapping[str, str] | Callable[[str], str]


def to_portable(state: optax.OptState, params: Any) -> dict[str, Array]:
    """Takes an optimizer state apart into arrays by parameter path.

    Stacked state becomes, for each leaf, an array ``(matrices of the leaf, ...)`` under
    ``<place in the state>/<path>``; everything else keeps its place in the state as its
    name. The result does not depend on grouping, `max_batch`, sharding or padding, and
    can be saved by anything that saves a dict of arrays.

    Args:
        state: State of any optimizer that contains `on_matrices`.
        params: The parameters that it belongs to; only their paths matter.

    Returns:
        A flat dict.

    Raises:
        ValueError: If the state holds a matrix of which `params` knows nothing.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx = on_matrices(optax.trace(0.9))
        >>> params = {"up": {"kernel": jnp.ones((3, 5))}}
        >>> {k: v.shape for k, v in to_portable(tx.init(params), params).items()}
        {'inner_state/trace/up/kernel': (1, 5, 3)}
    """
    paths = {zlib.crc32(path.encode()): path for path in named_leaves(params)}
    flat: dict[str, Array] = {}
    for prefix, node in _nodes(state):
        if not isinstance(node, OnMatricesState):
            flat[prefix] = node
            continue
        rows = {name: _rows_by_path(ids, paths) for name, ids in node.manifest.items()}
        for keys, leaf in jax.tree_util.tree_flatten_with_path(node.inner_state)[0]:
            place, group = _place(keys, rows)
            place = "/".join(p for p in (prefix, "inner_state", place) if p)
            if group is None or jnp.ndim(leaf) == 0:
                flat[place if group is None else f"{place}/{_shapes(group)}"] = leaf
                continue
            for path, order in rows[group].items():
                flat[f"{place}/{path}"] = _append(flat.get(f"{place}/{path}"), leaf[order])
    return flat
