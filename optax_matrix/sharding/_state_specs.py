"""Partition specs of an optimizer's state, as a tree and as regular expressions."""

import re
from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._mesh import (
    Recorder,
    recording,
    trimmed,
    visible_mesh,
    visible_spec,
)
from optax_matrix._paths import key_name, leaves_with_keys, named_leaves, path_name
from optax_matrix.matrices.boxes import boxes_of, names_of
from optax_matrix.sharding._param_specs import (
    checked_spec,
    given_mesh,
    given_specs,
    look_up,
)


@checked
def state_specs(tx: AnyOptimizer, params: Any, param_specs: Any = None) -> Any:
    """The partition specs of ``tx.init(params)``, without computing it.

    Stacks of matrices are sharded over their owners (with ``placement=None``, like
    their first leaf). State that mirrors a parameter, such as Adam's moments, has the
    sharding of that parameter. All other state is replicated. Pass the specs to
    `jax.jit` as ``out_shardings`` of `tx.init` and of the training step, and to Orbax
    to restore into.

    Args:
        tx: Any optimizer, with or without `on_matrices` inside.
        params: Parameters, or their shapes as `jax.ShapeDtypeStruct`.
        param_specs: Tree or prefix tree of `jax.sharding.PartitionSpec` or
            `jax.sharding.NamedSharding` that covers every parameter; None for the
            shardings of `params`.

    Returns:
        A tree of the structure of ``tx.init(params)`` with a
        `jax.sharding.PartitionSpec` for each array.

    Raises:
        ValueError: If `param_specs` holds anything else, leaves out a parameter or has
            a spec that does not fit; if `tx.init` is wrapped in another trace.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> import optax_matrix as om
        >>> axes, kinds = ("fsdp", "tp"), (jax.sharding.AxisType.Explicit,) * 2
        >>> mesh = jax.make_mesh((1, 1), axes, kinds, devices=jax.devices()[:1])
        >>> params = {"kernel": jax.ShapeDtypeStruct((4, 8), jnp.float32)}
        >>> shardings = {"kernel": NamedSharding(mesh, P("fsdp", "tp"))}
        >>> placement = om.owners(axes, param_specs=shardings)
        >>> tx = om.on_matrices(optax.trace(0.9), placement=placement)
        >>> for spec in jax.tree.leaves(state_specs(tx, params, shardings)):
        ...     print(tuple(spec))
        (('fsdp', 'tp'),)
        (('fsdp', 'tp'),)
    """
    return recorded(tx, params, param_specs)[1]


@checked
def state_rules(
    tx: AnyOptimizer, params: Any, param_specs: Any = None
) -> tuple[tuple[str, PartitionSpec], ...]:
    """The specs of `state_specs` as rules; the first rule that matches counts.

    EasyDeL, EasyLM and others place state by such rules: each pair is a regular
    expression for `re.search` in the path of an array, keys joined by ``/``, and its
    spec. The rules also match where the state is part of a larger one
    (``opt_state/...``). Put them before the rules of the parameters.

    Args:
        tx: Any optimizer, with or without `on_matrices` inside.
        params: Parameters, or their shapes as `jax.ShapeDtypeStruct`.
        param_specs: As in `state_specs`.

    Returns:
        A rule for each array of the state.

    Raises:
        ValueError: As `state_specs`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> from jax.sharding import PartitionSpec as P
        >>> import optax_matrix as om
        >>> params = {"up": jax.ShapeDtypeStruct((4, 8), jnp.float32)}
        >>> tx = om.on_matrices(optax.trace(0.9))
        >>> for rule, spec in state_rules(tx, params, P("fsdp")):
        ...     print(rule, tuple(spec))
        (^|/)inner_state/trace/8x4...$ (None, None, 'fsdp')
        (^|/)manifest/8x4...$ ()
    """
    specs = state_specs(tx, params, param_specs)
    by_path = {
        "/".join(map(key_name, keys)): spec
        for keys, spec in jax.tree.leaves_with_path(specs)
    }
    # A path may be the end of a longer one, so the longer path comes first.
    order = sorted(by_path, key=lambda path: (-path.count("/"), path))
    return tuple((f"(^|/){re.escape(path)}$", by_path[path]) for path in order)


def recorded(
    tx: optax.GradientTransformation, params: Any, param_specs: Any
) -> tuple[Any, Any, Recorder]:
    """The shapes of a state, their specs, and what `on_matrices` recorded of them."""
    specs = _specs_by_path(params, param_specs)
    shapes = {path: tuple(leaf.shape) for path, leaf in named_leaves(params).items()}

    recorder = Recorder(specs, _mesh(params, param_specs))
    made: list[Any] = []

    def init(params: Any) -> Any:
        with recording(recorder):
            state = tx.init(params)
        noted = recorder.noted
        known = {id(leaf): spec for leaf, spec in noted}
        found = [known.get(id(leaf)) for leaf in jax.tree.leaves(state)]
        if len(noted) > len([spec for spec in found if spec is not None]):
            raise ValueError(
                "`tx` must be the transformation itself, but its `init` is wrapped (in "
                "jax.jit, say), which hides the specs of its state; pass it unwrapped."
            )
        made.extend(found)
        return state

    state = jax.eval_shape(init, params)
    pairs = zip(leaves_with_keys(state), made, strict=True)
    every = [spec or _mirrored(k, x, specs, shapes) for (k, x), spec in pairs]
    structure = jax.tree.structure(state)
    found = jax.tree.unflatten(structure, [trimmed(spec) for spec in every])
    return state, found, recorder


def _specs_by_path(params: Any, param_specs: Any) -> dict[str, tuple]:
    leaves = named_leaves(params)
    if param_specs is None:
        boxes = boxes_of(params)
        said = lambda path: names_of(boxes[path]) if path in boxes else ()
        return {p: visible_spec(leaf) or said(p) for p, leaf in leaves.items()}
    given = given_specs(param_specs)
    mesh = _mesh(params, param_specs)
    specs = {path: look_up(path, given) for path in leaves}
    if absent := [path for path, spec in specs.items() if spec is None]:
        raise ValueError(
            "`param_specs` must cover every parameter, but have no entry for "
            f"{', '.join(map(repr, absent[:3]))}, only for "
            f"{', '.join(map(repr, list(given)[:3]))}; give PartitionSpec() to "
            "replicated parameters."
        )
    check = lambda path, spec: checked_spec(path, leaves[path].shape, spec, mesh)
    full = {path: check(path, spec or ()) for path, spec in specs.items()}
    return {path: tuple(axes or None for axes in spec) for path, spec in full.items()}


def _mesh(params: Any, param_specs: Any) -> Any:
    return visible_mesh(named_leaves(params)) or given_mesh(given_specs(param_specs))


def _mirrored(keys: tuple, leaf: Any, specs: Any, shapes: Any) -> PartitionSpec:
    """The spec of the parameter whose path and shape this state has."""
    for start in range(len(keys)):
        path = path_name(keys[start:])
        if shapes.get(path) == tuple(leaf.shape):
            return PartitionSpec(*specs[path])
    return PartitionSpec()
