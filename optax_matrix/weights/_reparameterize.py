"""The factory of POET's second form."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array

from optax_matrix.linalg._checks import check_positive_int
from optax_matrix.linalg._orthogonal import cayley_neumann
from optax_matrix.transforms._checks import check_callable, check_choice
from optax_matrix.weights._leaf import SIDE_NUMBERS, Primitives
from optax_matrix.weights._reparameterization import Reparameterization


def reparameterize(
    *,
    variant: str = "block",
    block: int | float | Mapping[str, int | float] = 256,
    orthogonal: Callable[[Array], Array] = cayley_neumann,
    merge_interval: int = 400,
    reset: str = "moments",
    sides: str = "both",
    seed: int = 0,
    dimension_numbers: Any = None,
    train_others: bool = True,
) -> Reparameterization:
    r"""Holds matrices as fixed ones between trainable rotations (POET, OFT).

    .. math::
        W = R W_0 P, \qquad W_0 \leftarrow R W_0 P \text{ every } T_m \text{ updates}

    The same method as `poet`, in its memory-saving form: gradients and moments exist
    for the rotations alone. Parameters are split into a frozen and a trainable part,
    `materialize` makes weights of them for the forward pass, and `merge_if_due` starts
    new rotations every ``merge_interval`` updates. All parts are plain arrays that can
    be saved at any moment, and what `materialize` returns in the end is a model like
    any other.

    Args:
        variant: ``"block"``: blocks over all dimensions, in a random order.
            ``"full"``: one block over a random choice of them.
        block: Side b of the blocks; a float is a fraction of the dimension. A mapping
            gives it for the sides ``"out"`` (P) and ``"in"`` (R).
        orthogonal: Kernel from skew-symmetric to orthogonal blocks, such as
            `linalg.cayley_neumann`.
        merge_interval: T_m, the updates between two merges.
        reset: ``"moments"``: a merge starts the optimizer's moments of the rotations
            anew. ``"none"``: it leaves them.
        sides: ``"both"``; ``"in"`` (R alone, which is OFT) or ``"out"``.
        seed: Of the permutations. They depend on it, the leaf's path, the matrix's
            place in the leaf and the number of merges, on nothing else.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        train_others: Whether the other leaves are trained; otherwise they are frozen.

    Returns:
        An object with ``split``, ``materialize``, ``merge``, ``merge_if_due`` and
        ``optimizer``, that holds no arrays.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> poet = reparameterize(block=2, merge_interval=2)
        >>> params = {"kernel": jnp.eye(4), "bias": jnp.ones(4)}
        >>> frozen, trainable = poet.split(params)
        >>> tx = poet.optimizer(rotations=optax.adam(0.1), others=optax.adamw(0.1))
        >>> state = tx.init(trainable)
        >>> loss = lambda t: poet.materialize(frozen, t)["kernel"][0].sum()
        >>> updates, state = tx.update(jax.grad(loss)(trainable), state, trainable)
        >>> trainable = optax.apply_updates(trainable, updates)
        >>> frozen, trainable, state = poet.merge_if_due(frozen, trainable, state, tx)
        >>> w = poet.materialize(frozen, trainable)["kernel"]  # still orthogonal
        >>> bool(jnp.allclose(w @ w.T, jnp.eye(4), atol=1e-5))
        True

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_ (POET), 2025. Deviations:
        Eq. 6 with k = 4; moments are reset by default, as in the authors' code; a last
        block that sticks out over the dimension is the identity there.
    """
    check_choice("variant", variant, ("full", "block"))
    check_choice("reset", reset, ("moments", "none"))
    check_choice("sides", sides, ("both", "in", "out"))
    check_callable("orthogonal", orthogonal)
    check_positive_int("merge_interval", merge_interval)
    chosen = SIDE_NUMBERS if sides == "both" else (sides,)
    blocks = dict(block) if isinstance(block, Mapping) else dict.fromkeys(chosen, block)
    if set(blocks) != set(chosen):
        raise ValueError(
            f"`block` must give the sides {sorted(chosen)} that `sides` names, got "
            f"{sorted(blocks)}; pass one number for all of them."
        )
    for side in blocks.values():
        _check_block(side)
    return Reparameterization(
        primitives=Primitives(variant, blocks, orthogonal, seed),
        merge_interval=merge_interval,
        reset=reset,
        dimension_numbers=dimension_numbers,
        train_others=train_others,
    )


def _check_block(block: Any) -> None:
    whole = isinstance(block, int) and not isinstance(block, bool)
    fraction = isinstance(block, float) and 0 < block <= 1
    if not fraction and not (whole and block >= 2):
        raise ValueError(
            "`block` must be an int of at least 2 or a float in (0, 1], got "
            f"{block!r}; the paper's are 64, 128, 256 and 1/8, 1/4, 1/2."
        )
