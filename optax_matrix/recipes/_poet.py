"""POET and OFT: training by orthogonal factors of the weights."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import optax
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.arguments import (
    check_decay,
    check_not_negative,
    check_positive_int,
    check_rate,
)
from optax_matrix.layout import on_matrices
from optax_matrix.linalg import cayley_neumann
from optax_matrix.recipes._optimizer import beside_other, scaled_learning_rate
from optax_matrix.transforms import limit_skew_norm, spo
from optax_matrix.transforms.stochastic_primitives import bound_for

_BASE_RATE = 5.0  # Beside that of Q at a block of 256 or half a side.


def poet(
    learning_rate: optax.ScalarOrSchedule,
    *,
    variant: str = "block",
    block: Any = 256,
    merge_interval: int | None = 400,
    terms: int = 4,
    orthogonal: Any = None,
    max_norm: ArrayLike | str | None = "auto",
    sides: str = "both",
    reset: str = "moments",
    hold: str = "stored",
    seed: int = 0,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-6,
    weight_decay: optax.ScalarOrSchedule = 0.01,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""POET for matrices: Adam on orthogonal factors; AdamW for the rest.

    .. math::
        W = R \, W_0 \, P

    where R and P are made of random primitives (`spo`) that are merged into
    :math:`W_0` every so many updates. The singular values of every matrix stay those of
    its initialisation, so initialise well: normalise the rows of kernels
    (`initialize_matrices`). There is no ``scale_by_poet``: updates are finished steps,
    and weight decay does not act on matrices.

    With the default kernel each merge multiplies singular values by up to
    :math:`1 + s^{10} / 2` on either side, s the norm of Q, and training blows up once s
    passes 1, where the paper's rates bring it within a merge interval (noise alone to
    1.9 in blocks of 64 at 4e-3). ``max_norm`` keeps s within bounds.

    Args:
        learning_rate: Learning rate of Q, a number or a schedule. In the paper it is
            in proportion to 1 / b: 1e-3 for a ``block`` of 256 or 0.5, 2e-3 for 128 or
            0.25, 4e-3 for 64 or 0.125, at all sizes of model.
        variant: ``"block"`` (POET-BS) or ``"full"`` (POET-FS).
        block: Side of a block: an int, or with ``"full"`` also a float for a fraction
            of the side; a dict with one for ``"in"`` and one for ``"out"`` splits the
            budget between R and P.
        merge_interval: Number of updates between merges; None for no merge.
        terms: k of `linalg.cayley_neumann`.
        orthogonal: Another kernel from skew to orthogonal blocks, as in `spo`; None
            for `linalg.cayley_neumann`.
        max_norm: Largest norm of a block's Q (`transforms.limit_skew_norm`), a turn by
            53 degrees at 0.5; None for no bound, as in the paper. ``"auto"`` is 0.5 for
            `linalg.cayley_neumann` and `linalg.cayley_taylor`, else None.
        sides: ``"both"``; ``"in"`` for R alone (`oft`); ``"out"`` for P alone.
        reset: ``"moments"`` of Adam are zero after a merge, or ``"none"`` are.
        hold: Whether :math:`W_0` is ``"stored"`` or ``"recovered"`` from W (`spo`).
        seed: Seed of the primitives.
        b1: Decay rate of Adam's first moment.
        b2: Decay rate of Adam's second moment.
        eps: Adam's epsilon, that of the other leaves' AdamW as well.
        weight_decay: Decoupled weight decay of the other leaves only.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.999).
        other_learning_rate: Learning rate of that AdamW; None for 5 times
            ``learning_rate`` times b / 256 (twice a fraction), 5e-3 by the rule above.
            The paper takes 1e-2 (60M), 5e-3 (130M, 350M) and 1e-3 (1.3B).
        mu_dtype: Dtype of the first moments; None for float32 (Q's) and the parameter's
            (the others').

    Returns:
        An optimizer of the whole tree; its state is, per matrix, :math:`W_0` in float32
        (unless recovered), three times the trainable parameters, and permutations.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.poet(4e-3, block=64)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Qiu et al., `Reparameterized LLM Training via Orthogonal Equivalence
        Transformation <https://arxiv.org/abs/2506.08001>`_ (POET), 2025. Deviations:
        those of `spo`; ``max_norm``; the authors' code halves the learning rate of Q,
        and adds eps before it corrects the second moment's bias; the clip at 0.1 and
        its tightening after a merge belong to the training loop, where they see the
        gradients of W: those of Q exist in `reparameterize` only.
    """
    check_rate("learning_rate", learning_rate)
    check_decay("b1", b1)
    check_decay("b2", b2)
    check_not_negative("eps", eps)
    check_positive_int("terms", terms)
    options = {
        "variant": variant,
        "block": block,
        "orthogonal": partial(cayley_neumann, terms=terms)
        if orthogonal is None
        else orthogonal,
        "merge_interval": merge_interval,
        "sides": sides,
        "reset": reset,
        "hold": hold,
        "seed": seed,
        "update_dtype": _wire_dtype(placement),
    }
    spo(optax.identity(), **options)  # Checks its arguments, now.
    hyperparams = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps}
    max_norm = bound_for(max_norm, options["orthogonal"])
    if max_norm is not None:
        hyperparams["max_norm"] = max_norm

    def build(layout, learning_rate, b1, b2, eps, max_norm=None):
        adam = optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)
        ids = {name: group.ids for name, group in layout.groups.items()}
        step = optax.scale_by_learning_rate(learning_rate)
        bound = optax.identity() if max_norm is None else limit_skew_norm(max_norm)
        return spo(optax.chain(adam, step, bound), ids=ids, **options)

    steps = on_matrices(
        build,
        hyperparams=hyperparams,
        dimension_numbers=dimension_numbers,
        placement=placement,
        needs_params=True,
        probe=orthogonal is not None,  # Adam and our own kernel couple nothing.
    )
    base_rate: Any = other_learning_rate
    if base_rate is None:
        ratio = _BASE_RATE * _fraction(block)
        base_rate = scaled_learning_rate(learning_rate, ratio)
    return beside_other(
        steps,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        other=other,
        other_learning_rate=base_rate,
        other_b2=0.999,
        other_eps=eps,
        mu_dtype=mu_dtype,
    )


def oft(
    learning_rate: optax.ScalarOrSchedule,
    *,
    variant: str = "block",
    block: Any = 256,
    merge_interval: int | None = 400,
    terms: int = 4,
    orthogonal: Any = None,
    max_norm: ArrayLike | str | None = "auto",
    reset: str = "moments",
    hold: str = "stored",
    seed: int = 0,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-6,
    weight_decay: optax.ScalarOrSchedule = 0.01,
    weight_decay_mask: Any = None,
    dimension_numbers: Any = None,
    placement: Any = None,
    other: optax.GradientTransformation | None = None,
    other_learning_rate: optax.ScalarOrSchedule | None = None,
    mu_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Orthogonal training: `poet` with P = I, so that all neurons turn together.

    .. math::
        W = R \, W_0

    The angles between the neurons of a matrix, and their norms, stay as they are.

    Args:
        learning_rate: Learning rate of Q, a number or a schedule, as in `poet`.
        variant: ``"block"`` or ``"full"``.
        block: Side of a block, as in `poet`.
        merge_interval: Number of updates between merges; None for one rotation by
            blocks that never change, as in fine-tuning by OFT, which needs
            ``orthogonal=linalg.cayley`` to turn them further than ``max_norm``.
        terms: k of `linalg.cayley_neumann`.
        orthogonal: Another kernel, as in `poet`; OFT's own is `linalg.cayley`.
        max_norm: Largest norm of a block's Q, as in `poet`.
        reset: ``"moments"`` of Adam are zero after a merge, or ``"none"`` are.
        hold: Whether :math:`W_0` is ``"stored"`` or ``"recovered"`` from W (`spo`).
        seed: Seed of the primitives.
        b1: Decay rate of Adam's first moment.
        b2: Decay rate of Adam's second moment.
        eps: Adam's epsilon, that of the other leaves' AdamW as well.
        weight_decay: Decoupled weight decay of the other leaves only.
        weight_decay_mask: Tree, prefix tree or callable, as in `optax.adamw`.
        dimension_numbers: Which leaves are matrices, as in `on_matrices`.
        placement: Where whole matrices live on a mesh, as in `on_matrices`.
        other: Optimizer of all other leaves; None for AdamW(0.9, 0.999).
        other_learning_rate: Learning rate of that AdamW, as in `poet`.
        mu_dtype: Dtype of the first moments, as in `poet`.

    Returns:
        An optimizer of the whole tree, as `poet`.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import optax_matrix as om
        >>> tx = om.oft(4e-3, block=64)
        >>> params = {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)}
        >>> updates, state = jax.jit(tx.update)(params, tx.init(params), params)
        >>> updates["kernel"].shape
        (4, 8)

    References:
        Qiu et al., `Controlling Text-to-Image Diffusion by Orthogonal Finetuning
        <https://arxiv.org/abs/2306.07280>`_, 2023; POET's R : P = 1 : 0 (Figure 5).
        Deviations from the former: random permutations, merges.
    """
    return poet(
        learning_rate,
        variant=variant,
        block=block,
        merge_interval=merge_interval,
        terms=terms,
        orthogonal=orthogonal,
        max_norm=max_norm,
        sides="in",
        reset=reset,
        hold=hold,
        seed=seed,
        b1=b1,
        b2=b2,
        eps=eps,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        dimension_numbers=dimension_numbers,
        placement=placement,
        other=other,
        other_learning_rate=other_learning_rate,
        mu_dtype=mu_dtype,
    )


def _fraction(block: Any) -> float:
    """Side of a block, the largest if there are two, against the paper's largest."""
    sides = block.values() if isinstance(block, Mapping) else [block]
    return max(2 * b if isinstance(b, float) else b / 256 for b in sides)


def _wire_dtype(placement: Any) -> Any:
    """What updates are rounded to on their way from the owners, `quantized` or not."""
    return getattr(getattr(placement, "base", placement), "wire_dtype", None)
