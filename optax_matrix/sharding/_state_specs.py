"""Partition specs of an optimizer's state."""

from typing import Any

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from optax_matrix.layout._paths import named_leaves, path_name
from optax_matrix.layout._specs import explicit_spec, named_sharding, recording
from optax_matrix.sharding._param_specs import given_specs


def state_specs(
    tx: optax.GradientTransformation, params: Any, param_specs: Any = None
) -> Any:
    """The partition specs of ``tx.init(params)``, without making it.

    Stacks of matrices lie with their owners (with ``placement=None``, as their first
    leaf); state that mirrors a parameter, as Adam's moments do, lies as that parameter;
    all else is replicated. Give them to `jax.jit` as ``out_shardings`` of `tx.init`, to
    Orbax, or to `nnx.Optimizer`'s state.

    Args:
        tx: Any optimizer, with `on_matrices` inside or not.
        params: Parameters, or their shapes as `jax.ShapeDtypeStruct`.
        param_specs: Tree or prefix tree of `jax.sharding.PartitionSpec` or
            `jax.sharding.NamedSharding`; None for the sharding that `params` carry.

    Returns:
        A tree of the structure of ``tx.init(params)`` with a
        `jax.sharding.PartitionSpec` for each array.

    Raises:
        ValueError: If `param_specs` holds anything else, or a spec does not fit.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> import optax_matrix as om
        >>> axes, devices = ("fsdp", "tp"), jax.devices()[:1]
        >>> mesh = jax.make_mesh((1, 1), axes, devices=devices)
        >>> params = {"kernel": jax.ShapeDtypeStruct((4, 8), jnp.float32)}
        >>> shardings = {"kernel": NamedSharding(mesh, P("fsdp", "tp"))}
        >>> placement = om.owners(axes, param_specs=shardings)
        >>> tx = om.on_matrices(optax.trace(0.9), placement=placement)
        >>> for spec in jax.tree.leaves(state_specs(tx, params, shardings)):
        ...     print(tuple(spec))
        (('fsdp', 'tp'), None)
        (('fsdp', 'tp'), None, None)
    """
    given = given_specs(param_specs)
    specs = {
        path: _spec(path, leaf, given) for path, leaf in named_leaves(params).items()
    }
    shapes = {path: tuple(leaf.shape) for path, leaf in named_leaves(params).items()}

    made: list[Any] = []

    def init(params: Any) -> Any:
        with recording(specs) as noted:
            state = tx.init(params)
        known = {id(leaf): spec for leaf, spec in noted}
        made.extend(known.get(id(leaf)) for leaf in jax.tree.leaves(state))
        return state

    state = jax.eval_shape(init, params)
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    pairs = zip(leaves, made, strict=True)
    every = [spec or _mirrored(k, x, specs, shapes) for (k, x), spec in pairs]
    return jax.tree.unflatten(structure, every)


def _spec(path: str, leaf: Any, given: Any) -> tuple:
    if given:
        parts = path.split("/")
        prefixes = ("/".join(parts[:k]) for k in range(len(parts), -1, -1))
        found = next((given[p] for p in prefixes if p in given), PartitionSpec())
        return tuple(found.spec if isinstance(found, NamedSharding) else found)
    sharding = named_sharding(leaf)
    return tuple(sharding.spec) if sharding else explicit_spec(leaf)


def _mirrored(keys: tuple, leaf: Any, specs: Any, shapes: Any) -> PartitionSpec:
    """The spec of the parameter that this state has the path and shape of."""
    for start in range(len(keys)):
        path = path_name(keys[start:])
        if shapes.get(path) == tuple(leaf.shape):
            rest = [None] * (len(leaf.shape) - len(specs[path]))
            return PartitionSpec(*specs[path], *rest)
    return PartitionSpec(*[None] * len(leaf.shape))
