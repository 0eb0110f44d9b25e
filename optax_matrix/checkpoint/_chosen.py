"""Which entries of parameters, and of stacks of matrices, are chosen."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from optax_matrix._paths import named_leaves
from optax_matrix.stacks.identities import FILLER, identities
from optax_matrix.stacks.layout import Layout

Masks = Mapping[str, Array]


def masks_like(where: Any, params: Any) -> dict[str, Array]:
    """The mask of every parameter, by path, in its shape."""
    try:
        given = named_leaves(jax.tree.broadcast(where, params))
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`where` must be a tree or prefix tree of `params` with bools or masks, "
            f"got {jax.tree.structure(where)}; give True or False to every parameter."
        ) from error
    masks = {}
    for path, leaf in named_leaves(params).items():
        mask, shape = given[path], np.shape(leaf)
        dtype = mask.dtype if hasattr(mask, "dtype") else np.asarray(mask).dtype
        if dtype != np.bool_:
            raise ValueError(
                f"`where` must hold bools, got {dtype} for {path!r}; compare, as in "
                "mask > 0."
            )
        try:
            masks[path] = jnp.broadcast_to(mask, shape)
        except ValueError as error:
            raise ValueError(
                f"`where` must hold masks that broadcast to the parameters, got shape "
                f"{np.shape(mask)} for {path!r} of shape {shape}; add axes of size 1."
            ) from error
    return masks


def chosen_entries(layout: Layout, masks: Masks) -> dict[str, Array]:
    """Which entries of each stack are chosen, ``(count, m, n)``."""
    entries = {}
    for name, group in layout.groups.items():
        pieces, known = [], list[tuple[int, int]]()
        for path, piece in dict.fromkeys((m.path, m.piece) for m in group.members):
            if path not in masks:
                raise ValueError(
                    f"`params` must hold all that `tx` trains, but lack {path!r}; pass "
                    "the tree that tx.init gets."
                )
            pieces.append(layout.views[path].to_matrices(masks[path][None])[piece])
            ids = identities(path, piece, np.arange(len(pieces[-1])))
            known.extend(map(tuple, ids.tolist()))
        pieces.append(jnp.zeros((1, group.rows, group.cols), bool))
        row = {identity: i for i, identity in enumerate([*known, FILLER])}
        order = [row[identity] for identity in map(tuple, group.ids.tolist())]
        entries[name] = jnp.concatenate(pieces)[np.array(order)]
    return entries
