"""The wrapper that lets a block for stacks of matrices run on any parameter tree."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from optax_matrix.layout._layout import Layout, make_layout
from optax_matrix.layout._paths import map_named, named_leaves
from optax_matrix.layout._probe import refuse_coupling
from optax_matrix.layout._sharding import AsSharded

Build = Callable[..., optax.GradientTransformation]


class OnMatricesState(NamedTuple):
    """State of `on_matrices`.

    Attributes:
        manifest: Per group, uint32 ``(count, 2)``: which matrix stands at each place of
            the stacks (crc32 of the path, position in the leaf).
        inner_state: State of the transformation over the stacks. Leaves under a group's
            name are per matrix (batch axis in front) or scalars.
    """

    manifest: dict[str, Array]
    inner_state: optax.OptState


def on_matrices(
    build: Build | optax.GradientTransformation,
    *,
    hyperparams: Mapping[str, Any] | None = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    max_batch: int | None = None,
    needs_params: bool = False,
    probe: bool = True,
) -> optax.GradientTransformationExtraArgs:
    r"""Runs a transformation of matrix stacks on the matrix leaves of a tree.

    Every matrix leaf is seen as ``(batch, out, in)``, rows being output neurons; leaves
    of equal view are stacked, and the transformation sees a plain dict
    ``{group: stack}``. Updates come back in the leaf's shape and the parameter's dtype.
    Leaves that are no matrices pass through unchanged, as in `optax.masked`.

    Args:
        build: ``build(layout, **hyperparams)``, which returns the transformation over
            the stacks for a static `Layout`; or such a transformation itself.
        hyperparams: Numbers that may be traced, handed to `build` at every step.
        dimension_numbers: Which leaves are matrices and how: None for the default rule
            (`layout.default_rule`), a rule (`layout.by_path`, `layout.infer`), a tree
            or prefix tree of `MatrixDimensionNumbers` or
            `optax.contrib.MuonDimensionNumbers` with None for other leaves, or a
            callable from the parameters to such a tree.
        placement: Where whole matrices live on a mesh; None leaves arrays as they are
            sharded, in Auto and Explicit mode.
        max_batch: Largest number of matrices in a stack, which bounds the memory that
            stacking takes; None bounds stacks by `layout.STACK_ELEMENTS`.
        needs_params: Whether the transformation uses parameters, which costs stacking
            them. Weight decay does not need it: chain it outside.
        probe: Whether `init` tries out that matrices do not influence one another.

    Returns:
        A transformation for any tree of arrays (dict, NNX state, Linen variables,
        Equinox modules), with `OnMatricesState`.

    Raises:
        ValueError: If an argument is out of range; at `init`, if dimension numbers do
            not fit or the transformation couples matrices; at `update`, if the state
            belongs to other matrices.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> tx = on_matrices(optax.scale(2.0))
        >>> params = {"up": {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}}
        >>> updates, _ = tx.update(params, tx.init(params))
        >>> float(updates["up"]["kernel"][0, 0]), float(updates["up"]["bias"][0])
        (2.0, 1.0)
    """
    build = _as_build(build)
    _check(placement, max_batch)
    hyperparams = dict(hyperparams or {})
    place = placement or AsSharded()

    def init_fn(params):
        if type(params).__name__ == "_ParamsPlaceholder":
            return _OPAQUE  # `optax.tree.map_params` asks which state mirrors params.
        layout = make_layout(params, dimension_numbers, max_batch)
        if probe:
            refuse_coupling(build, hyperparams, layout, needs_params)

        def make_state():
            manifest = {name: jnp.asarray(g.ids) for name, g in layout.groups.items()}
            zeros = {
                name: jnp.zeros(x.shape, x.dtype)
                for name, x in layout.abstract().items()
            }
            if needs_params:
                zeros = layout.stack(_matrix_leaves(layout, params))
            tx = build(layout, **hyperparams)
            return OnMatricesState(manifest, tx.init(zeros))

        return place.init(layout, _matrix_leaves(layout, params), make_state)

    def update_fn(updates, state, params=None, **extra_args):
        like = updates if params is None else params
        layout = make_layout(_reference(updates, like), dimension_numbers, max_batch)
        _check_manifest(layout, state)
        if needs_params and params is None:
            raise ValueError(
                "`params` must be passed to `update`: this transformation uses the "
                "parameters; call tx.update(updates, state, params)."
            )
        leaves = _matrix_leaves(layout, updates)
        arrays, fixed = _split_arrays(extra_args)
        traced = {
            "hyperparams": hyperparams,
            "params": _matrix_leaves(layout, params) if needs_params else None,
            "extra_args": arrays,
        }
        dtypes = {path: leaf.dtype for path, leaf in named_leaves(like).items()}

        def step(leaves, state, traced):
            tx = optax.with_extra_args_support(build(layout, **traced["hyperparams"]))
            stacked = traced["params"] and layout.stack(traced["params"])
            new, inner = tx.update(
                layout.stack(leaves),
                state.inner_state,
                stacked,
                **traced["extra_args"],
                **fixed,
            )
            inner = jax.tree.map(_keep_dtype, inner, state.inner_state)
            new = layout.unstack(new)
            new = {path: x.astype(dtypes[path]) for path, x in new.items()}
            return new, state._replace(inner_state=inner)

        new, state = place.update(layout, step, leaves, state, traced)
        return map_named(lambda path, leaf: new.get(path, leaf), updates), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


_OPAQUE = object()


def _as_build(build: Any) -> Build:
    if isinstance(build, optax.GradientTransformation):
        return lambda layout: build
    if not callable(build):
        raise ValueError(
            "`build` must be a gradient transformation or a callable "
            f"build(layout, **hyperparams) that returns one, got {build!r}."
        )
    return build


def _check(placement: Any, max_batch: Any) -> None:
    if placement is not None and not hasattr(placement, "update"):
        raise ValueError(
            f"`placement` must be None or a placement object, got {placement!r}."
        )
    if max_batch is not None and (not isinstance(max_batch, int) or max_batch < 1):
        raise ValueError(
            f"`max_batch` must be a positive int or None, got {max_batch!r}."
        )


def _matrix_leaves(layout: Layout, tree: Any) -> dict[str, Any]:
    leaves = named_leaves(tree)
    return {path: leaves[path] for path in layout.views}


def _reference(updates: Any, like: Any) -> Any:
    """The leaves of `like` that `updates` has: shapes and dtypes decide the layout."""
    if updates is like:
        return updates
    present = named_leaves(updates)
    return {p: leaf for p, leaf in named_leaves(like).items() if p in present}


def _check_manifest(layout: Layout, state: OnMatricesState) -> None:
    held, wanted = set(state.manifest), set(layout.groups)
    if held != wanted:
        raise ValueError(
            "`state` must belong to these parameters: it holds the stacks "
            f"{sorted(held - wanted)} where the parameters make {sorted(wanted - held)} "
            "(name: shape, dtype, checksum of the parameter paths). If a layer was "
            "renamed, added or frozen, or the sharding or `max_batch` changed, carry "
            "the state over with optax_matrix.to_portable and from_portable."
        )


def _keep_dtype(new: Any, old: Any) -> Any:
    return new.astype(old.dtype) if new.dtype != old.dtype else new


def _split_arrays(extra_args: dict) -> tuple[dict, dict]:
    is_array = lambda x: isinstance(x, (jax.Array, np.ndarray, np.generic, float, int))
    arrays = {
        name: value
        for name, value in extra_args.items()
        if all(is_array(leaf) for leaf in jax.tree.leaves(value))
    }
    return arrays, {k: v for k, v in extra_args.items() if k not in arrays}
