"""Applies a function to every matrix of a tree, and keeps the leaves' sharding."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from optax_matrix._mesh import keep_sharding, named_sharding
from optax_matrix._paths import map_named
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.view import MatrixView
from optax_matrix.stacks.identities import ids_of_pieces, paths_by_checksum


def map_matrices(
    f: Callable[..., Array], params: Any, *args: Any, dimension_numbers: Any = None
) -> Any:
    """Applies a function to the matrices of every matrix leaf, leaf by leaf.

    This is for weights; for gradients use `on_matrices`, which stacks equal leaves.
    Dtypes and shardings do not change, and other leaves are returned as they are.

    Args:
        f: ``f(matrices, ids, *args)``: from ``(count, out, in)`` to the same shape;
            ``ids`` are the matrices' identities, uint32 ``(count, 2)``, as in
            `Group.ids`.
        params: Parameters.
        *args: Arrays for `f`. Do not close over traced arrays instead: that raises
            under Explicit axes.
        dimension_numbers: As in `on_matrices`.

    Returns:
        The tree with new matrices.

    Examples:
        >>> import jax.numpy as jnp
        >>> from optax_matrix import linalg
        >>> unit_rows = lambda w, ids: linalg.scale_rows(w)
        >>> params = {"up": {"kernel": jnp.full((4, 3), 7.0), "bias": jnp.ones(3)}}
        >>> float(map_matrices(unit_rows, params)["up"]["kernel"][0, 0])  # (in, out)
        0.5
    """
    decisions = decide(params, dimension_numbers)
    paths_by_checksum(decisions)  # Two of one checksum are refused.

    def run(params: Any, args: Any) -> Any:
        def one(path: str, leaf: Any) -> Any:
            view = decisions[path].view
            if view is None:
                return leaf
            of_leaf = lambda leaf, *args: _on_pieces(f, view, path, leaf, *args)
            return keep_sharding(of_leaf, leaf, *args)

        return map_named(one, params)

    return jax.jit(run, out_shardings=_shardings_of(params))(params, args)


def _shardings_of(tree: Any) -> Any:
    """The shardings of a tree's arrays on a mesh, None for arrays on none."""
    return jax.tree.map(named_sharding, tree)


def _on_pieces(f: Callable, view: MatrixView, path: str, leaf: Any, *args: Any):
    pieces = view.to_matrices(leaf[None])
    ids = map(jnp.asarray, ids_of_pieces(view, path))
    new = [f(x, i, *args) for x, i in zip(pieces, ids, strict=True)]
    for x, old in zip(new, pieces, strict=True):
        if x.shape != old.shape:
            raise ValueError(
                f"`f` must return matrices of the shape {old.shape} of its argument "
                f"for {path!r}, got {x.shape}."
            )
    return view.from_matrices(new)[0].astype(leaf.dtype)


def on_mapped_params(
    tx: optax.GradientTransformation,
    f: Callable[..., Array],
    *args: Any,
    dimension_numbers: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Passes `map_matrices` of the parameters to a transformation, as its parameters.

    An example is weight decay whose strength depends on the shape of a matrix:
    `optax.add_decayed_weights` of matrices that are multiplied by their factors.
    `init` gets the parameters themselves.

    >>> import jax.numpy as jnp, optax
    >>> tenth = lambda w, ids: 0.1 * w
    >>> tx = on_mapped_params(optax.add_decayed_weights(0.5), tenth)
    >>> params = {"kernel": jnp.ones((2, 4)), "bias": jnp.ones(4)}
    >>> zeros = {"kernel": jnp.zeros((2, 4)), "bias": jnp.zeros(4)}
    >>> updates, _ = tx.update(zeros, tx.init(params), params)
    >>> round(float(updates["kernel"][0, 0]), 2), float(updates["bias"][0])
    (0.05, 0.5)
    """
    tx = optax.with_extra_args_support(tx)

    def update_fn(updates, state, params=None, **extra_args):
        if params is not None:
            params = map_matrices(f, params, *args, dimension_numbers=dimension_numbers)
        return tx.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(tx.init, update_fn)
