"""The bases and rotations that optimizer states hold, as arrays by parameter path."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from optax_matrix._arguments import Kernel, checked
from optax_matrix.checkpoint import to_portable
from optax_matrix.checkpoint.compacting import compact
from optax_matrix.linalg import cayley, skew_norm, to_skew
from optax_matrix.linalg.permuted_blocks import materialize, permute
from optax_matrix.linalg.skew import free_entries, triangle_side
from optax_matrix.transforms.low_rank import ProjectLowRankState
from optax_matrix.transforms.rotation import InEigenbasisState, RotateState
from optax_matrix.transforms.sides import Pair
from optax_matrix.transforms.stochastic_primitives import SpoState
from optax_matrix.tree.holders import check_tuples
from optax_matrix.tree.state import OnMatricesState, states_in
from optax_matrix.weights import Frozen, Trainable

_LEAD = "inner_state/"
_ROTATED = (RotateState, InEigenbasisState)

Triangles = dict[str, Array]


def bases(opt_state: Any, params: Any) -> dict[str, Any]:
    """The bases and rotations that an optimizer holds, by parameter path.

    These are the columns U of low-rank methods (GaLore, Alice, SUMO, ...) and the
    rotations of methods with a rotated frame (ARO, SOAP, Eigen-Adam, ...). To measure
    their stability, compare the bases of two renewals by `eigenvector_cosines`. Costs a
    copy; call it outside of `jax.jit`.

    Args:
        opt_state: State of an optimizer that contains `on_matrices`.
        params: The parameters that the state belongs to; only their paths matter.

    Returns:
        For each matrix leaf columns ``(matrices of the leaf, m, r)``, where m is the
        side that they belong to; or a named tuple of ``rows`` and ``cols``, if both
        sides of the matrices have some. Further pieces of a leaf are named
        ``path#k``, as in `to_portable`. A basis that is not computed yet is zero.

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
    for _, owner in states_in(compact(opt_state)[0]):
        for node in _find_states(owner.inner_state, ProjectLowRankState, *_ROTATED):
            rows, cols = (
                _by_parameter(owner, stacks, params) for stacks in _pair_of(node)
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


class Rotations(NamedTuple):
    r"""The factors of :math:`W = R W_0 P` since the last merge, for one leaf.

    In this formula of the paper, W is ``in x out``. For matrices ``out x in``, as in
    this package, it is :math:`W = P^\top W_0 R^\top`.

    Attributes:
        r: Rotations R of the inputs, ``(matrices, in, in)``; None if they do not turn.
        p: Rotations P of the outputs, ``(matrices, out, out)``, or None.
        r_norms: Norm of Q (`linalg.skew_norm`) of each block of R,
            ``(matrices, blocks)``, or None.
        p_norms: The same for P.
    """

    r: Array | None
    p: Array | None
    r_norms: Array | None
    p_norms: Array | None


@checked
def rotations(
    state: Any, params: Any, *, orthogonal: Kernel = cayley
) -> dict[str, Rotations]:
    """The rotations of POET or OFT since the last merge, as dense matrices.

    `diagnostics.orthogonality_error` of them is the approximation error of the paper;
    its other measures are in the notebook on orthogonal training. A merge multiplies
    the rotations into the weights, and the next ones start at the identity: for the
    rotation since the start of training, multiply those before each merge.
    Costs memory: one ``n x n`` and one ``m x m`` matrix for each ``m x n`` weight.

    Args:
        state: State of an optimizer that contains `spo` inside `on_matrices` (`poet`,
            `oft`); or the `Trainable` part of `reparameterize`.
        params: The parameters; or the `Frozen` part.
        orthogonal: The kernel from skew-symmetric to orthogonal blocks that the method
            has; its name is not in the state. `linalg.cayley_neumann` for ``terms=4``.

    Returns:
        `Rotations` for each matrix leaf, by path. Further pieces of a leaf are named
        ``path#k``, as in `to_portable`.

    Raises:
        ValueError: If the state holds no rotations, or only one of the two arguments is
            a part of `reparameterize`; as in `to_portable`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> params = {"up": jnp.ones((4, 8))}
        >>> state = om.poet(1e-3, block=2).init(params)
        >>> of_up = om.diagnostics.rotations(state, params)["up"]
        >>> of_up.r.shape, of_up.p.shape, of_up.p_norms.shape
        ((1, 4, 4), (1, 8, 8), (1, 4))
        >>> of_up.r[0].trace().tolist()  # The identity, at the start.
        4.0

        >>> frozen, trainable = om.reparameterize(block=2).split(params)
        >>> list(om.diagnostics.rotations(trainable, frozen))
        ['up']

    References:
        POET, Eq. 2 to 6; Figures 2, 8 to 12 and 21 to 23.
    """
    if isinstance(state, Trainable) or isinstance(params, Frozen):
        parts = _of_parts(state, params)
    else:
        parts = _of_state(state, params)
    if not parts:
        raise ValueError(
            "`state` must hold rotations, got a state without; pass that of `poet`, of "
            "`oft` or of another chain with `spo` inside `on_matrices`, or the "
            "trainable part of `reparameterize`."
        )

    @jax.jit
    def run(parts):
        return {path: _dense(p, q, orthogonal) for path, (p, q) in parts.items()}

    return run(parts)


def _of_parts(trainable: Any, frozen: Any) -> dict[str, tuple[Triangles, Triangles]]:
    if not (isinstance(trainable, Trainable) and isinstance(frozen, Frozen)):
        raise ValueError(
            "`state` and `params` must both be parts of `reparameterize`, got "
            f"{type(trainable).__name__} and {type(frozen).__name__}; call "
            "rotations(trainable, frozen)."
        )
    return {
        path + (f"#{i}" if i else ""): (frozen.perms[path][i], triangles)
        for path, pieces in trainable.rotations.items()
        for i, triangles in enumerate(pieces)
    }


def _of_state(state: Any, params: Any) -> dict[str, tuple[Triangles, Triangles]]:
    parts: dict[str, tuple[Triangles, Triangles]] = {}
    for _, owner in states_in(compact(state)[0]):
        for node in _find_states(owner.inner_state, SpoState):
            for side in ("in", "out"):
                of_side = lambda tree, side=side: {
                    n: x.get(side) for n, x in tree.items()
                }
                perms = _by_parameter(owner, of_side(node.perms), params)
                q = _by_parameter(owner, of_side(node.q), params)
                for path in q:
                    held = parts.setdefault(path, ({}, {}))
                    held[0][side], held[1][side] = perms[path], q[path]
    return parts


def _dense(
    perms: Mapping[str, Array], q: Mapping[str, Array], kernel: Any
) -> Rotations:
    r, r_norms = _one_side("in", perms, q, kernel)
    p, p_norms = _one_side("out", perms, q, kernel)
    # The blocks of the side "out" are blocks of the transpose of P.
    return Rotations(r, None if p is None else p.mT, r_norms, p_norms)


def _one_side(
    side: str, perms: Mapping[str, Array], q: Mapping[str, Array], kernel: Any
) -> tuple[Array | None, Array | None]:
    r"""The matrices :math:`\Psi^\top \mathrm{diag}(G) \Psi`, and the norms of Q."""
    if side not in q:
        return None, None
    perm, triangles = perms[side], q[side]
    n, (k, size) = perm.shape[-1], triangles.shape[-2:]
    b = triangle_side(size)
    skew = to_skew(jnp.where(free_entries(n, k, b), triangles, 0), b)
    eye = jnp.broadcast_to(jnp.eye(n, dtype=skew.dtype), (*perm.shape, n))
    rows = {"out": perm}  # Applied to the rows of the identity, whichever side it is.
    dense = materialize(permute(eye, rows), {"out": kernel(skew)}, rows)
    return dense, skew_norm(skew)


def _find_states(tree: Any, *kinds: type) -> Iterator[Any]:
    """The outermost nodes of a state that are of the given types."""
    is_one = lambda node: isinstance(node, kinds)
    return filter(is_one, jax.tree.leaves(tree, is_leaf=is_one))


def _by_parameter(
    owner: OnMatricesState, stacks: Mapping[str, Any], params: Any
) -> dict[str, Array]:
    """Stacks ``{group: (count, ...)}`` or None, as the arrays of each parameter.

    That is ``{path: (matrices of the leaf, ...)}``, with ``path#k`` for further pieces.
    """
    held = {name: stack for name, stack in stacks.items() if stack is not None}
    flat = to_portable(OnMatricesState({}, owner.manifest, {}, held), params)
    return {k.removeprefix(_LEAD): x for k, x in flat.items() if k.startswith(_LEAD)}
