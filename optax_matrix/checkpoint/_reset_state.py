"""Reset of the optimizer state of chosen parameters."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._mesh import (
    Recorder,
    explicit_spec,
    recording,
    visible_mesh,
    with_auto_axes,
)
from optax_matrix._paths import (
    group_of,
    key_name,
    leaves_with_keys,
    named_leaves,
    path_name,
)
from optax_matrix.checkpoint._chosen import Masks, chosen_entries, masks_like
from optax_matrix.matrices.boxes import unboxed
from optax_matrix.quantization.packing import QuantizedState
from optax_matrix.stacks.identities import FILLER
from optax_matrix.stacks.layout import Group, Layout, group_matrices
from optax_matrix.stacks.slots import (
    map_states,
    pooled_like,
    unpooled,
    whole_shapes,
)
from optax_matrix.transforms.low_rank import (
    OrthogonalizeLowRankState,
    ProjectLowRankState,
    ScaleByTrackedAdamState,
)
from optax_matrix.transforms.rotation import (
    InEigenbasisState,
    RotateSharedState,
    RotateState,
)
from optax_matrix.transforms.second_moments import PreconditionState
from optax_matrix.transforms.stochastic_primitives import SpoState
from optax_matrix.tree.holders import check_itself
from optax_matrix.tree.state import check_one_run, check_structure, is_state, states_in

# Fields that belong to whole matrices, by the state that has them. What a block keeps
# in another frame (a subspace, an eigenbasis, permuted rows) depends on all entries of
# a matrix, and so do the arrays that define the frame.
_SHARED = {
    InEigenbasisState: {"rotation", "gram", "base_state", "spectrum"},
    OrthogonalizeLowRankState: {"right"},
    PreconditionState: {"gram", "root"},
    ProjectLowRankState: {"basis", "inner_state", "combine_state"},
    QuantizedState: {"scales"},
    RotateSharedState: {"rotation", "base_state"},
    RotateState: {"rotation", "base_state"},
    ScaleByTrackedAdamState: {"vectors", "mu", "root"},
    SpoState: set(SpoState._fields),
}
# No state: no leaf of these fields belongs to a stack.
_LABELS = dict.fromkeys(("method", "manifest", "sides"), group_matrices({}, {}))


@checked
def reset_state(
    tx: AnyOptimizer,
    opt_state: optax.OptState,
    params: Any,
    where: Any,
) -> optax.OptState:
    """Starts the state of chosen parameters afresh: dead units, new heads.

    State of a matrix that is chosen as a whole becomes that of ``tx.init(params)``, all
    of it: momenta, statistics, bases, rotations. Of a matrix that is chosen in part,

    * arrays with a number for each entry (momenta, second moments) start afresh in the
      chosen entries,
    * statistics of rows or columns start afresh where a whole row or column is chosen,
    * everything else stays: eigenbases, Gram matrices, rotations and subspaces, moments
      inside of these (all of `galore`, ``nu`` of `soap`), POET's rotations, norms of
      matrices, and sums of weights for bias corrections.

    State of other leaves that has their paths and shapes, such as moments of AdamW, is
    reset entry by entry. State that several leaves share stays: counts (AdamW corrects
    no bias of moments that start late), schedules, and the rotations of
    ``aro(sharing=...)``. It works under `jax.jit`, with traced masks, and on meshes.

    Args:
        tx: The optimizer, with or without `on_matrices` inside.
        opt_state: Its state.
        params: The parameters, after their own reset if there is one: the state of
            `poet` and `hyperball` starts from their values.
        where: Tree or prefix tree of the parameters. Each leaf is a bool, or a mask of
            bools that broadcasts to the shape of the parameter.

    Returns:
        The state, with the same structure, dtypes and shardings.

    Raises:
        ValueError: If ``where`` does not fit the parameters or holds no bools, if
            ``opt_state`` is not a state of ``tx``, or if ``tx.init`` is compiled.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> params = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}  # (in, out)
        >>> tx = om.muon(0.1)
        >>> _, state = tx.update(params, tx.init(params), params)
        >>> dead = jnp.array([False, True, False])  # The second output unit.
        >>> state = reset_state(tx, state, params, {"kernel": dead, "bias": dead})
        >>> (mu,) = state.inner_state[0].mu.values()  # (batch, out, in)
        >>> (mu[0, :, 0] == 0).tolist()
        [False, True, False]
    """
    check_itself(opt_state, "opt_state")
    masks = masks_like(where, params)
    old, rebox = unboxed(opt_state)
    for _, node in states_in(old):
        check_one_run(node)
    recorder = Recorder({}, None)
    with recording(recorder):
        fresh = unboxed(tx.init(params))[0]
    if _places(fresh) != _places(old):
        check_structure(lambda p: unboxed(tx.init(p))[0], old, params)
    layouts = {frozenset(layout.groups): layout for layout, _ in recorder.layouts}
    _check_layouts(layouts, fresh)
    whole = map_states(whole_shapes, old)
    leaves = list(_leaves_of(whole, layouts))

    def run(masks: Masks, fresh: Any, old: Any) -> Any:
        chosen = [chosen_entries(layout, masks) for layout in layouts.values()]
        entries = {name: x for stacks in chosen for name, x in stacks.items()}
        pair = [map_states(unpooled, state) for state in (fresh, old)]
        arrays = zip(leaves, *map(jax.tree.leaves, pair), strict=True)
        new = [_reset(leaf, entries, masks, *both) for leaf, *both in arrays]
        new = jax.tree.unflatten(jax.tree.structure(whole), new)
        return map_states(pooled_like, new, old)

    mesh = visible_mesh(named_leaves(old))
    if mesh is not None and AxisType.Explicit in mesh.axis_types:
        of_type = lambda x: NamedSharding(mesh, PartitionSpec(*explicit_spec(x)))
        run = with_auto_axes(run, jax.tree.map(of_type, old))
    new = run(masks, *(jax.tree.map(_on_device, state) for state in (fresh, old)))
    return rebox(jax.tree.map(_placed, new, old))


class _StateLeaf(NamedTuple):
    """A leaf of a state.

    Attributes:
        keys: Where it is.
        is_free: Whether it is outside of what `on_matrices` keeps for matrices.
        group: Its stack; None if it belongs to none.
        is_shared: Whether it belongs to whole matrices.
    """

    keys: tuple
    is_free: bool
    group: Group | None
    is_shared: bool


def _places(state: Any) -> list:
    """Where the arrays and the states of `on_matrices` are, in any kind of tree."""
    arrays = [path_name(keys) for keys, _ in leaves_with_keys(state)]
    return [arrays, [path_name(keys) for keys, _ in states_in(state)]]


def _check_layouts(layouts: Mapping[frozenset[str], Layout], state: Any) -> None:
    if any(frozenset(node.manifest) not in layouts for _, node in states_in(state)):
        raise ValueError(
            "`tx` must be the transformation itself, but its `init` is wrapped (in "
            "jax.jit, say), which hides its stacks; pass it unwrapped."
        )


def _reset(leaf: _StateLeaf, entries: Masks, masks: Masks, new: Any, old: Any) -> Any:
    """One array of the state, fresh in the chosen entries."""
    if leaf.group is not None:
        which = _of_stack(leaf, leaf.group, entries[leaf.group.name], old)
    elif leaf.is_free and (path := _path_of(leaf.keys, old, masks)) is not None:
        which = masks[path]
        if which.shape != old.shape:  # Such as the scales of eight-bit moments.
            which = jnp.all(which)
    else:
        return old
    return jnp.where(which, new.astype(old.dtype), old)


def _path_of(keys: tuple, old: Any, masks: Masks) -> str | None:
    """The parameter whose path this state has; None for a count."""
    paths = (path_name(keys[start:]) for start in range(len(keys)))
    is_count = not old.shape and not jnp.issubdtype(old.dtype, jnp.floating)
    if not is_count and "" in masks:  # The parameters are one bare array.
        return "" if old.shape == masks[""].shape else None
    return None if is_count else next((path for path in paths if path in masks), None)


def _of_stack(leaf: _StateLeaf, group: Group, entries: Array, old: Any) -> Array:
    """Which numbers of a stack's array belong to chosen entries, rows or matrices."""
    _, rows, cols = group.shape
    whole = entries.all((1, 2))
    if not old.shape:
        return whole[(group.ids != np.array(FILLER, np.uint32)).any(1)].all()
    names, rest = [key_name(key) for key in leaf.keys], old.shape[1:]
    # A vector of a square matrix says by its name which side it belongs to.
    is_side = lambda name: rows != cols or name in names
    if not leaf.is_shared:
        if rest == (rows, cols):
            return entries
        if rest == (rows, 1) or (rest == (rows,) and is_side("row_scale")):
            return entries.all(2).reshape(old.shape)
        if rest == (1, cols) or (rest == (cols,) and is_side("col_scale")):
            return entries.all(1).reshape(old.shape)
    return whole.reshape(-1, *[1] * len(rest))


def _placed(new: Any, old: Any) -> Any:
    """The array with the sharding of the old one, and in its memory."""
    if any(isinstance(x, jax.core.Tracer) for x in (new, old)):
        is_moved = _is_in_host(old) and not _is_in_host(new)
        return jax.device_put(new, jax.memory.Space.Host) if is_moved else new
    at = isinstance(old, jax.Array) and old.committed
    return jax.device_put(new, old.sharding) if at else new


def _is_in_host(x: Any) -> bool:
    """Whether an array, traced or not, is in the memory of the host."""
    space = getattr(jax.typeof(x), "memory_space", None)
    return space is not None and space == jax.memory.Space.Host


def _on_device(x: Any) -> Any:
    """The array where it can be computed with."""
    return jax.device_put(x, jax.memory.Space.Device) if _is_in_host(x) else x


def _leaves_of(
    state: Any,
    layouts: dict[frozenset[str], Layout],
    above: tuple = (),
    layout: Layout | None = None,
    shared: bool = False,
) -> Iterator[_StateLeaf]:
    """What is known of each leaf of a state, in the order of its leaves.

    ``layouts`` are found by the names of their stacks.
    """
    is_node = lambda x: is_state(x) or type(x) in _SHARED
    for keys, node in leaves_with_keys(state, is_node):
        keys = above + keys
        if not is_node(node):
            group = None if layout is None else group_of(keys, layout.groups)
            yield _StateLeaf(keys, layout is None, group, shared)
            continue
        for field, part in zip(node._fields, node, strict=True):
            inside = (*keys, jax.tree_util.GetAttrKey(field))
            if not is_state(node):
                partly = shared or field in _SHARED[type(node)]
                yield from _leaves_of(part, layouts, inside, layout, partly)
            else:
                own = layouts[frozenset(node.manifest)]
                own = {"after": None, "other": None, **_LABELS}.get(field, own)
                yield from _leaves_of(part, layouts, inside, own)
