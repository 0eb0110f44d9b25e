"""Partition specs of an optimizer's state as regular expressions over its paths."""

import re
from typing import Any

import jax
from jax.sharding import PartitionSpec

from optax_matrix._arguments import AnyOptimizer, checked
from optax_matrix._paths import key_name
from optax_matrix.sharding._state_specs import state_specs


@checked
def state_rules(
    tx: AnyOptimizer, params: Any, param_specs: Any = None
) -> tuple[tuple[str, PartitionSpec], ...]:
    """The specs of `state_specs` as rules, of which the first that matches holds.

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
    # A path may be the end of another: the longer comes first.
    order = sorted(by_path, key=lambda path: (-path.count("/"), path))
    return tuple((f"(^|/){re.escape(path)}$", by_path[path]) for path in order)
