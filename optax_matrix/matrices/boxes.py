"""State in the boxes of a framework, which hold the sharding of each array.

Frameworks that place optimizer state read its sharding from the wrapper of each array:
the metadata of an NNX variable, the names of a Linen box, the axes of a haliax array.
`init` puts state of such parameters in the same kind of wrapper; `update` accepts it
with and without. No framework is imported: a new box is a copy of an old one.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax

from optax_matrix._paths import group_of, leaves_with_keys, path_name
from optax_matrix.matrices.batch_names import batch_axes, is_dimension

_SHARDING = ("optimizer_sharding", "out_sharding", "sharding_names", "sharding")


def boxes_of(tree: Any) -> dict[str, Any]:
    """The boxes of a tree that hold one leaf, by the path of that leaf."""
    pairs = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)[0]
    found = {}
    for keys, box in pairs:
        if is_box(box) and len(inside := leaves_with_keys(box)) == 1:
            found[path_name((*keys, *inside[0][0]))] = box
    return found


def names_of(box: Any) -> tuple:
    """The mesh axes or logical names of each axis in a box; ``()`` without names."""
    if _is_named(box):
        return _names_of_axes(box)
    if _is_linen(box):
        return tuple(box.names)
    said = _said(box)
    said = getattr(said, "spec", said)
    return () if said is None else tuple(said)


def has_mesh_axes(box: Any) -> bool:
    """Whether the names in a box are certainly mesh axes, those of a NamedSharding."""
    return _is_variable(box) and hasattr(_said(box), "spec")


def has_logical_names(box: Any, known: Collection[str] = ()) -> bool:
    """Whether the names in a box are certainly logical.

    An NNX variable and a Linen `Partitioned` hold those or axes of the mesh, which may
    have the same names, such as "expert", but do not say what an axis is. They are
    logical if one of them is that of a dimension or in ``known``, or if the rules
    translate it.
    """
    if has_mesh_axes(box):
        return False
    metadata = box.get_metadata() if _is_variable(box) else {}
    kind = metadata.get("linen_meta_type", type(box))  # Of what was a Linen box.
    linen = {base.__name__ for base in kind.__mro__}
    if _is_named(box) or "LogicallyPartitioned" in linen:
        return True
    names, rules = _flat(names_of(box)), dict(reversed(_rules(box)))
    if any(is_dimension(name) or name in known for name in names):
        return True
    return any(_flat([rules.get(name, name)]) != [name] for name in names)


def placed_names_of(box: Any) -> tuple:
    """The same with mesh axes in place of the names of several batch axes.

    A stack has one axis for all of them, which can have several mesh axes, but only one
    logical name. Rules tell what names stand for, those of an NNX variable or of the
    context; without rules for all of them, names stay as they are.
    """
    names = names_of(box)
    several = batch_axes(names)
    if len(several) < 2 or not _is_variable(box):
        return names
    rules = dict(reversed(_rules(box)))  # The first one of a name holds.
    if not all(names[a] in rules for a in several):
        return names
    meant = {a: tuple(_flat([rules[names[a]]])) or None for a in several}
    return tuple(meant.get(a, name) for a, name in enumerate(names))


def _rules(box: Any) -> list[tuple[str, Any]]:
    """What logical names stand for; Flax is not imported unless the box is its own."""
    spmd = sys.modules.get("flax.core.spmd")
    of_context = getattr(spmd, "get_logical_axis_rules", tuple)()
    own = box.get_metadata().get("sharding_rules") if _is_variable(box) else ()
    return [*(own or ()), *(of_context or ())]


def boxed(
    state: Any, specs: Any, boxes: Mapping[str, Any], groups: Mapping[str, Any]
) -> Any:
    """A state whose sharded leaves are in boxes like those of the parameters.

    ``specs`` has the new names for the box of each leaf. Leaves without a sharding get
    no box.
    """
    if not boxes:
        return state
    default = next(iter(boxes.values()))

    def box(keys, x, spec):
        if not any(spec):
            return x
        group = group_of(keys, groups)
        like = default if group is None else boxes.get(group.members[0].path, default)
        return _box_like(like, x, tuple(spec))

    return jax.tree_util.tree_map_with_path(box, state, specs)


def has_boxes(tree: Any) -> bool:
    """Whether a tree has a box, also one without a leaf."""
    return any(map(is_box, jax.tree.leaves(tree, is_leaf=is_box)))


def without_hollow(tree: Any) -> Any:
    """A tree in which NNX variables without their leaf are what they hold.

    That is None, or the `MaskedNode` of `optax.partition`. NNX itself treats such a
    variable as a leaf.
    """
    hollow = lambda x: _is_variable(x) and not jax.tree.leaves(x)
    held = lambda x: jax.tree.leaves(x, is_leaf=lambda node: node is not x)[0]
    empty = lambda x: held(x) if hollow(x) else x
    return jax.tree.map(empty, tree, is_leaf=_is_variable)


def unboxed(state: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A state without boxes, and the function that puts its successor into them."""
    structure = jax.tree.structure(state)

    def content(x):
        inside = jax.tree.leaves(x) if is_box(x) else []
        return inside[0] if len(inside) == 1 else x

    plain = jax.tree.map(content, state, is_leaf=is_box)
    bare = jax.tree.structure(plain)
    if bare == structure:
        return state, lambda new: new

    def rebox(new):
        leaves, held = jax.tree.flatten(new)
        return structure.unflatten(leaves) if held == bare else new

    return plain, rebox


def is_box(x: Any) -> bool:
    """Whether this is a node that holds one array and its sharding."""
    return _is_variable(x) or _is_linen(x) or _is_named(x)


def _is_variable(x: Any) -> bool:
    """An NNX variable."""
    return hasattr(type(x), "get_metadata") and hasattr(type(x), "from_metadata")


def _is_linen(x: Any) -> bool:
    """A Linen box with names: `Partitioned`, `LogicallyPartitioned`."""
    return hasattr(type(x), "replace_boxed") and hasattr(x, "names")


def _is_named(x: Any) -> bool:
    """A named array of haliax; its ``axes`` may be computed, which needs an array."""
    kind = type(x)
    fields = getattr(kind, "__dataclass_fields__", ())
    told = lambda name: hasattr(kind, name) or name in fields
    return kind.__name__ == "NamedArray" and any(map(told, ("axis_names", "axes")))


def _names_of_axes(x: Any) -> tuple[str, ...]:
    """Haliax before 1.5 has axes with a name and size, no ``axis_names``."""
    if hasattr(x, "axis_names"):
        return tuple(x.axis_names)
    return tuple(axis.name for axis in x.axes)


def _said(box: Any) -> Any:
    """The names of an NNX variable: a tuple, a spec, a NamedSharding, or None."""
    key = _sharding_key(box)
    return None if key is None else box.get_metadata()[key]


def _sharding_key(box: Any) -> str | None:
    metadata = box.get_metadata()
    return next((key for key in _SHARDING if metadata.get(key)), None)


def _box_like(like: Any, x: Any, spec: tuple) -> Any:
    own = set(_flat(names_of(like)))
    in_own_words = own.issuperset(_flat(spec))
    if _is_named(like):
        names = _axis_names(spec)
        if hasattr(like, "axis_names"):
            return type(like)(x, names)
        axis = type(like.axes[0])
        return type(like)(x, tuple(map(axis, names, x.shape)))
    if _is_linen(like):
        if in_own_words:
            return like.replace(value=x, names=spec)
        # Logical rules would drop the mesh axes of the owners.
        kinds = [c for c in type(like).__mro__ if c.__name__ == "Partitioned"]
        return (kinds[0] if kinds else type(like))(x, names=spec)
    known = like.get_metadata()
    kept = ("hijax", "ref", "eager_sharding", "mesh", "sharding_rules")
    metadata = {key: known[key] for key in kept if key in known}
    if not in_own_words:
        # In this order in every process, as it is a part of the compiled program's key.
        axes = dict.fromkeys(x for x in spec if isinstance(x, str) and x not in own)
        # They are axes of the mesh already.
        rules = tuple((axis, axis) for axis in axes)
        metadata["sharding_rules"] = (*(known.get("sharding_rules") or ()), *rules)
        if "eager_sharding" in metadata:
            metadata["eager_sharding"] = False
    key = _sharding_key(like) or "out_sharding"
    metadata[key.replace("optimizer", "out")] = spec
    return type(like).from_metadata(x, metadata)


def _axis_names(spec: tuple) -> tuple[str, ...]:
    """A name for each axis; those without one get a name that maps nowhere."""
    named = enumerate("+".join(_flat([name])) for name in spec)
    return tuple(name or f"unsharded_{i}" for i, name in named)


def _flat(names: Any) -> list[str]:
    several = [n if isinstance(n, (tuple, list)) else (n,) for n in names]
    return [name for entry in several for name in entry if name is not None]
