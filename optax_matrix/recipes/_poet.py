"""POET and OFT: train orthogonal factors of the weights."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import optax

from optax_matrix._arguments import (
    Decay,
    Dtype,
    Kernel,
    NotNegative,
    Positive,
    PositiveInt,
    Rate,
    Seed,
)
from optax_matrix.recipes._method import Method
from optax_matrix.recipes._recipe import Common, preset, recipe
from optax_matrix.transforms import scale_by_adam_per_matrix, spo
from optax_matrix.transforms.stochastic_primitives.primitives import relative_size
from optax_matrix.transforms.stochastic_primitives.skew_bound import bounded, kernel_for


@recipe
def poet(
    learning_rate: Rate,
    *,
    variant: Literal["block", "full"] = "block",
    block: int | float | Mapping[str, int | float] = 256,
    merge_interval: PositiveInt | None = 400,
    orthogonal: Kernel | None = None,
    terms: PositiveInt | None = None,
    max_norm: Positive | Literal["auto"] | None = "auto",
    merge_at: Positive | None = None,
    q_decay: NotNegative = 0.01,
    sides: Literal["both", "in", "out"] = "both",
    reset: Literal["moments", "none"] = "moments",
    hold: Literal["stored", "recovered"] = "stored",
    seed: Seed = 0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NotNegative = 1e-6,
    weight_decay: Rate = 0.01,
    mu_dtype: Dtype | None = None,
    **common: Unpack[Common],
) -> Method:
    r"""POET for matrices: Adam on orthogonal factors. AdamW(0.9, 0.999) for the rest.

    .. math::
        W = R \, W_0 \, P

    R and P are products of random primitives (`spo`) that are merged into :math:`W_0`
    every ``merge_interval`` updates. Every matrix keeps the singular values of its
    initialization, so initialize well: `initialize_matrices` gives every output neuron
    norm one, as in the paper. The state is, per matrix, :math:`W_0` in float32 (unless
    it is recovered), three times the trainable parameters, and permutations.

    There is no ``scale_by_poet``: updates are finished steps, and weight decay does not
    act on matrices. A matrix that starts at zero stays zero (LoRA's B, some output
    projections): `describe` marks it and `init` warns, where values can be seen. Start
    it elsewhere, or exclude it by ``dimension_numbers``.

    Args:
        learning_rate: Learning rate of Q, a number or a schedule. In the paper it is
            proportional to 1 / b: 1e-3 for a ``block`` of 256 or 0.5, 2e-3 for 128 or
            0.25, 4e-3 for 64 or 0.125, for all sizes of model.
        variant: ``"block"`` (POET-BS) or ``"full"`` (POET-FS).
        block: Side of a block: an int, or with ``"full"`` also a float for a fraction
            of the side; a dict with one for ``"in"`` and one for ``"out"`` splits the
            budget between R and P.
        merge_interval: Number of updates between merges; None for no merge.
        orthogonal: Kernel from skew-symmetric to orthogonal blocks, as in `spo`; None
            for `linalg.cayley`, or `linalg.cayley_neumann` if ``terms`` is given.
        terms: Number of terms k of `linalg.cayley_neumann`; 4 in the paper.
        max_norm: Largest norm of a block's Q (`transforms.limit_skew_norm`). ``"auto"``
            is None, no bound, and 0.5 for `linalg.cayley_neumann` and `cayley_taylor`:
            a plane turns by up to 53 degrees, a vector under a Gaussian Q of side 64
            (256) by 26 (22).
        merge_at: Norm of a block's Q, at most ``max_norm``, at which its matrix is
            merged by itself besides.
        q_decay: Decoupled weight decay of Q, which turns R and P back to the identity.
        sides: ``"both"``; ``"in"`` for R alone (`oft`); ``"out"`` for P alone.
        reset: ``"moments"`` sets Adam's to zero at a merge; ``"none"`` keeps them.
        hold: Whether :math:`W_0` is ``"stored"`` or ``"recovered"`` from W (`spo`).
        seed: Seed of the primitives.
        b1: Decay rate of Adam's first moment.
        b2: Decay rate of Adam's second moment.
        eps: Adam's epsilon, also that of the other leaves' AdamW.
        weight_decay: Decoupled weight decay of the other leaves that are no vectors.
        mu_dtype: Dtype of the first moments; None for float32 (Q) and that of the
            parameter (other leaves).
        **common: Keywords of every recipe, see `optax_matrix.recipes`.

    Returns:
        An optimizer of the whole tree. Without ``other_learning_rate``, that of AdamW
        is ``learning_rate`` times 5 b / 256 (10 times a fraction), which is 5e-3 by the
        rule above. The paper uses 1e-2 (60M), 5e-3 (130M, 350M) and 1e-3 (1.3B).

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.poet(4e-3, block=64)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_ (POET), 2025. Deviations:
        those of `spo`; the exact Cayley transform, which the paper approximates by
        ``terms=4, max_norm=None``: at its rates norms of Q pass 1, where the series
        stretches singular values without bound (``examples/study/pages/poet.md``). The
        authors' code halves the learning rate of Q, has no ``q_decay``, and adds eps
        before it corrects the bias of the second moment. The gradient clip at 0.1 and
        its ramp after a merge belong to the training loop, on the gradients of W.
    """
    kernel = kernel_for(orthogonal, terms)
    rate_of_q: Any = q_decay
    wire_dtype = getattr(common.get("placement"), "wire_dtype", None)

    adam = scale_by_adam_per_matrix(b1, b2, eps, mu_dtype=mu_dtype)
    decay = optax.add_decayed_weights(rate_of_q)
    step = optax.scale_by_learning_rate(learning_rate)
    chain = spo(
        bounded(optax.chain(adam, decay, step), max_norm, kernel, merge_at),
        variant=variant,
        block=block,
        orthogonal=kernel,
        merge_interval=merge_interval,
        merge_at=merge_at,
        sides=sides,
        reset=reset,
        hold=hold,
        seed=seed,
        update_dtype=wire_dtype,
    )

    return Method(
        chain,
        is_step=True,
        stops=True,  # Adam does, and part of a rotation would be none.
        other_rate=5.0 * relative_size(block),
        other_b2=0.999,
        other_eps=eps,
    )


@preset(poet, fixed={"sides": "in"}, merge_interval=None, q_decay=0.0)
def oft():
    r"""Orthogonal training: `poet` with P = I, so that all neurons rotate together.

    .. math::
        W = R \, W_0

    The angles between the neurons of a matrix and their norms do not change; zeros stay
    zero, as in `poet`. Blocks are never merged by default.

    Where the gradients of a matrix keep to one direction, the neurons line up with it,
    the gradients of the rotations vanish, and Adam's second moments follow. A gradient
    that comes after that gives a step of full size: in 20,000 steps of a matrix with
    gradients of rank one, the largest update was that of the first steps, and 5,000
    times the median.

    Args:
        **options: Those of `poet`, without ``sides``.

    Returns:
        An optimizer of the whole tree, as `poet`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax_matrix as om
        >>> tx = om.oft(4e-3, block=64)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Qiu et al., `Controlling Text-to-Image Diffusion by Orthogonal Finetuning
        <https://arxiv.org/abs/2306.07280>`_, 2023; with ``merge_interval=400`` POET's
        R : P = 1 : 0 (Figure 5). Deviation from the former: a random permutation.
    """
