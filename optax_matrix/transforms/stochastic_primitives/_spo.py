"""Stochastic primitive optimization: training orthogonal factors of weights (POET)."""

from typing import Literal

import optax

from optax_matrix._arguments import Dtype, Kernel, Positive, PositiveInt, Seed, checked
from optax_matrix.linalg import cayley
from optax_matrix.transforms.arguments import Transformation
from optax_matrix.transforms.stochastic_primitives._spo_step import Spo
from optax_matrix.transforms.stochastic_primitives.merges import (
    Merges,
)
from optax_matrix.transforms.stochastic_primitives.primitives import (
    Block,
    Primitives,
    Reset,
    RotatedSides,
    Variant,
    rotated_blocks,
)


@checked
def spo(
    inner: Transformation,
    *,
    variant: Variant = "block",
    block: Block = 256,
    orthogonal: Kernel = cayley,
    merge_interval: PositiveInt | None = 400,
    merge_at: Positive | None = None,
    sides: RotatedSides = "both",
    reset: Reset = "moments",
    hold: Literal["stored", "recovered"] = "stored",
    seed: Seed = 0,
    update_dtype: Dtype | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Trains orthogonal factors of the parameters and so preserves singular values.

    .. math::
        W = R \, W_0 \, P, \qquad R = \Psi^\top \mathrm{diag}(G(Q_1), \dots) \Psi

    and P likewise, where :math:`\Psi` is a random permutation and G maps skew-symmetric
    to orthogonal blocks. The chain rule gives the gradient with respect to every Q from
    that of W, at the current Q. ``inner`` turns it into a step of Q, and the update is
    the new :math:`R W_0 P` minus W. After every ``merge_interval`` updates
    :math:`W_0 \leftarrow R W_0 P`, :math:`Q \leftarrow 0`, and new permutations are
    drawn. With ``merge_at`` a matrix is also merged by itself as soon as the norm of
    one of its Q reaches that value. No ``m x m`` matrix is ever formed. Gradients of Q
    are clipped to :math:`\pm 10^{18}`, so that their squares stay finite.

    The update already contains the learning rate, that of ``inner``; do not rescale it
    afterwards. Any other change to W (weight decay, averaging, a restore, updates that
    were not applied) is detected by comparing bits, and is folded into :math:`W_0`.

    With ``hold="stored"`` :math:`W_0` is part of the state, in float32 for
    half-precision parameters, so that training does not stall where an update rounds to
    zero. With ``"recovered"`` it is computed from W at every step with the inverses of
    R and P. This saves the memory, but rounding errors of W remain, and
    `linalg.cayley_neumann` needs a norm of Q below about 0.9.

    Args:
        inner: Any transformation of a tree of Q's triangles, learning rate included,
            such as ``optax.adam(1e-3)``. With `linalg.cayley_neumann` end it with
            ``limit_skew_norm(0.5)``, which keeps that map accurate between merges.
        variant: ``"block"`` for blocks that cover all of a side, the last one smaller
            if needed; ``"full"`` for one block on a random part of it.
        block: Size of a block: an int, or with ``"full"`` also a float for a fraction
            of the side; or a dict with one for ``"in"`` (R) and one for ``"out"`` (P).
        orthogonal: Kernel from skew-symmetric to orthogonal blocks: `linalg.cayley`,
            `linalg.cayley_neumann`, `linalg.cayley_taylor`, `linalg.exponential`.
        merge_interval: Number of updates between merges of all matrices; None for none.
        merge_at: Norm (`linalg.skew_norm`) of a block's Q at which its matrix is merged
            besides; None for no such merges.
        sides: ``"both"``; ``"in"`` for R alone, which is OFT; ``"out"`` for P alone.
        reset: State of ``inner`` that a merge resets: ``"moments"`` for its moments and
            the counts stored with them, but not separate counts such as those of
            schedules; ``"none"`` for nothing. Where ``merge_at`` merges a matrix by
            itself, moments are reset only if ``inner`` has a count for each matrix, as
            `scale_by_adam_per_matrix` has; with `optax.adam` they are kept.
        hold: Whether :math:`W_0` is ``"stored"`` or ``"recovered"``, see above.
        seed: Seed of the random permutations. Inside `on_matrices` those of a matrix
            depend on its path and its place in its leaf; elsewhere all matrices of a
            shape have the same.
        update_dtype: Dtype that updates are rounded to before they are applied, if it
            is narrower than that of the parameters, as with ``wire_dtype`` of `owners`.
            Knowing it, `spo` does not mistake the rounding for an outside change.

    Returns:
        A transformation of trees whose leaves are ``(..., m, n)``; it needs `params`.

    Raises:
        ValueError: If an argument is out of range; at `init`, if parameters have eight
            bits; at `update`, if `params` is missing.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax
        >>> import optax_matrix as om
        >>> tx = om.spo(optax.sgd(0.05), block=2)
        >>> params = {"w": jnp.array([[3.0, 0.0], [0.0, 1.0]])}
        >>> grads = {"w": jnp.array([[0.0, 1.0], [0.0, 0.0]])}
        >>> updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
        >>> new = params["w"] + updates["w"]
        >>> bool(jnp.allclose(jnp.linalg.svd(new)[1], jnp.array([3.0, 1.0]), 1e-4))
        True

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_ (POET), 2025, Algorithm 1,
        where W is in x out; here R acts on columns and P on rows, and Q of P has the
        opposite sign. Deviations: the exact Cayley transform in place of
        `linalg.cayley_neumann`; the last block may be smaller, which the authors' code
        rejects; moments are reset, as in that code; ``merge_at``.
    """
    blocks = rotated_blocks(block, sides, variant)
    primitives = Primitives(blocks, variant, orthogonal, seed)
    spo = Spo(
        inner=optax.with_extra_args_support(inner),
        primitives=primitives,
        merges=Merges(primitives, merge_interval, merge_at),
        resets=reset == "moments",
        stored=hold == "stored",
        update_dtype=update_dtype,
    )
    return optax.GradientTransformationExtraArgs(spo.init, spo.update)
