"""The factory of `Reparameterization`: POET as a reparameterization of weights."""

from typing import Any

from optax_matrix._arguments import Kernel, Positive, PositiveInt, Seed, checked
from optax_matrix.linalg import cayley
from optax_matrix.transforms.stochastic_primitives.primitives import (
    Block,
    Primitives,
    Reset,
    RotatedSides,
    Variant,
    rotated_blocks,
)
from optax_matrix.weights._reparameterization import Reparameterization


@checked
def reparameterize(
    *,
    variant: Variant = "block",
    block: Block = 256,
    orthogonal: Kernel = cayley,
    merge_interval: PositiveInt | None = 400,
    merge_at: Positive | None = None,
    sides: RotatedSides = "both",
    reset: Reset = "moments",
    seed: Seed = 0,
    dimension_numbers: Any = None,
    train_others: bool = True,
    in_turn: bool = True,
) -> Reparameterization:
    r"""Represents matrices by fixed ones between trainable rotations (POET, OFT).

    .. math::
        W = R W_0 P, \qquad W_0 \leftarrow R W_0 P \text{ every } T_m \text{ updates}

    This is the same method as `poet` in a form that saves memory: gradients and moments
    exist for the rotations only. ``split`` divides parameters into a frozen and a
    trainable part, ``materialize`` computes the weights for the forward pass, and
    ``merge_if_due`` starts new rotations every ``merge_interval`` updates. All parts
    are plain arrays that can be saved at any time. At the end, ``materialize`` returns
    the parameters of an ordinary model.

    With `linalg.cayley_neumann` use the object's ``optimizer``, which bounds the norm
    of Q as `poet` does, or end your own chain with `transforms.limit_skew_norm`: for
    larger Q that map is not a rotation.

    Frozen matrices have the dtype of the parameters, and every merge rounds to it: the
    singular values of bfloat16 weights (64 x 64) were off by 1e-2 after one merge and
    by 0.15 after 200. Split float32 parameters, and cast the result of ``materialize``.

    Args:
        variant: ``"block"``: blocks that cover all dimensions, in a random order.
            ``"full"``: one block on a random subset of the dimensions.
        block: Side b of the blocks; with ``"full"`` a float is a fraction of the
            dimension. A mapping has one entry each for the sides ``"out"`` (P) and
            ``"in"`` (R).
        orthogonal: Kernel from skew-symmetric to orthogonal blocks: `linalg.cayley`,
            which is exact, or POET's `linalg.cayley_neumann`.
        merge_interval: T_m, the number of updates between two merges of all matrices;
            None for no such merges.
        merge_at: Norm of a block's Q at which ``merge_if_due`` merges its matrix by
            itself, as in `poet`. Use `transforms.scale_by_adam_per_matrix` with it:
            the moments of `optax.scale_by_adam`, whose one count serves all matrices,
            are kept at such a merge.
        sides: ``"both"``; ``"in"`` (R alone, which is OFT) or ``"out"``.
        reset: ``"moments"``: a merge resets the optimizer's moments of the rotations.
            ``"none"``: it keeps them.
        seed: Seed of the permutations. They depend only on the seed, the path of the
            leaf, the index of the matrix in the leaf and the number of merges.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        train_others: Whether the other leaves are trained; otherwise they are frozen.
        in_turn: Whether to compute the matrices of one leaf (scanned layers, experts)
            one after another, with temporaries for one at a time. Pass False if the
            axis that counts them is sharded.

    Returns:
        An object without arrays, whose methods are ``split``, ``materialize``,
        ``merge``, ``merge_if_due`` and ``optimizer``.

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
        the exact Cayley transform, as in `poet`; moments are reset by default, as in
        the authors' code; the part of the last block that extends beyond the dimension
        is the identity; ``merge_at``.
    """
    blocks = rotated_blocks(block, sides, variant)
    return Reparameterization(
        primitives=Primitives(blocks, variant, orthogonal, seed),
        merge_interval=merge_interval,
        merge_at=merge_at,
        reset=reset,
        dimension_numbers=dimension_numbers,
        train_others=train_others,
        in_turn=in_turn,
    )
