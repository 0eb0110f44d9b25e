"""What optimizer states hold, as arrays by parameter path."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jaxtyping import Array

from optax_matrix.checkpoint import to_portable
from optax_matrix.transforms.low_rank import ProjectLowRankState
from optax_matrix.transforms.rotation import InEigenbasisState, RotateState
from optax_matrix.transforms.sides import Pair
from optax_matrix.tree.holders import check_tuples
from optax_matrix.tree.state import OnMatricesState, states_in

_LEAD = "inner_state/"

_ROTATED = (RotateState, InEigenbasisState)


def find_states(tree: Any, *kinds: type) -> Iterator[Any]:
    """The outermost nodes of a state that are of the given types."""
    is_one = lambda node: isinstance(node, kinds)
    return filter(is_one, jax.tree.leaves(tree, is_leaf=is_one))


def by_parameter(
    owner: OnMatricesState, stacks: Mapping[str, Any], params: Any
) -> dict[str, Array]:
    """Stacks ``{group: (count, ...)}`` or None, as the arrays of each parameter.

    That is ``{path: (matrices of the leaf, ...)}``, with ``path#k`` for further pieces.
    """
    held = {name: stack for name, stack in stacks.items() if stack is not None}
    flat = to_portable(OnMatricesState({}, owner.manifest, {}, held), params)
    return {k.removeprefix(_LEAD): x for k, x in flat.items() if k.startswith(_LEAD)}


def bases(opt_state: Any, params: Any) -> dict[str, Any]:
    """The bases and rotations that an optimizer holds, by parameter path.

    These are the columns U of the methods with a low rank (GaLore, Alice, SUMO, ...),
    and the rotations of those with a rotated frame (ARO, SOAP, Eigen-Adam, ...). For
    their stability compare those of two renewals by `eigenvector_cosines`. Costs a
    copy; call it outside of `jax.jit`.

    Args:
        opt_state: State of an optimizer that contains `on_matrices`.
        params: The parameters that the state belongs to; only their paths matter.

    Returns:
        For each matrix leaf columns ``(matrices of the leaf, m, r)``, where m is the
        side that they belong to; or a named tuple of ``rows`` and ``cols``, if both
        sides of the matrices have some. Further pieces of a leaf are named
        ``path#k``, as in `to_portable`. Zeros stand for bases that are not found yet.

    Raises:
        ValueError: If the state holds no bases (`project_low_rank` does not store those
            that it can draw again); as in `to_portable`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> params = {"up": jnp.ones((4, 8))}
        >>> state = om.galore(1e-3, rank=2).init(params)
        >>> {path: u.shape for path, u in bases(state, params).items()}
        {'up': (1, 4, 2)}

    References:
        Structured Fisher (Alice), Figure 6.
    """
    found: dict[str, Any] = {}
    for _, owner in states_in(opt_state):
        for node in find_states(owner.inner_state, ProjectLowRankState, *_ROTATED):
            rows, cols = (
                by_parameter(owner, stacks, params) for stacks in _pair_of(node)
            )
            for path in rows | cols:
                both = Pair(rows.get(path), cols.get(path))
                held = [x for x in both if x is not None]
                found[path] = both if len(held) == 2 else held[0]
    if not found:
        check_tuples(opt_state, "opt_state")
        raise ValueError(
            "`opt_state` must hold bases or rotations, got a state without; pass that "
            "of a method with a low rank that stores its basis, or with a rotated "
            "frame, from inside `on_matrices`."
        )
    return found


def _pair_of(node: Any) -> Pair:
    """The stacks of bases of the rows, and of the columns."""
    if isinstance(node, _ROTATED):
        pairs = node.rotation
        return Pair(*({name: p[i] for name, p in pairs.items()} for i in (0, 1)))
    rows = {name: held.vectors for name, held in node.basis.items()}
    inner = node.inner_state
    if isinstance(inner, ProjectLowRankState):  # Of both sides.
        return Pair(rows, {name: held.vectors for name, held in inner.basis.items()})
    return Pair(rows, {})
