"""Gradients that are not finite, or zero: one block around the chain of a method.

Most methods normalize their updates, so that a momentum moves a matrix at full size
however small it has become. And one NaN in the state of a matrix stays there. `guarded`
gives the chain finite gradients, restores the state of matrices that are skipped, and
changes the updates of both kinds as the policies say.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import checkify
from jax.typing import ArrayLike

from optax_matrix._arguments import check_choice, check_decay
from optax_matrix._surroundings import within
from optax_matrix._surroundings.keeping import select, settled
from optax_matrix.matrices.view import MatrixView
from optax_matrix.tree._arrays import keep_dtype

NonFinite = Literal["propagate", "skip", "zero", "raise"]
OnZero = Literal["fade", "skip", "follow"]  # In recipes.
ZeroGradient = ArrayLike | Literal["skip", "follow"]
"""In `on_matrices`, where the decay rate of the momentum takes the place of "fade"."""

Stacks = Mapping[str, jax.Array]
Leaves = Mapping[str, jax.Array]


class GuardedState(NamedTuple):
    """State of `guarded`.

    Attributes:
        inner_state: State of the chain.
        zero_gradients: For each stack the number of zero gradients in a row of each
            matrix, int32 ``(count,)``; None unless updates fade with it.
    """

    inner_state: optax.OptState
    zero_gradients: Any


class _Gradients(NamedTuple):
    """Stacks of gradients by name, and which of their matrices are unusual ``(b,)``.

    Attributes:
        finite: The gradients, with zeros for matrices that are not finite.
        bad: Which are not finite.
        zero: Which are zero.
        peaks: The largest absolute entries of the finite gradients.
    """

    finite: dict[str, jax.Array]
    bad: dict[str, jax.Array]
    zero: dict[str, jax.Array]
    peaks: dict[str, jax.Array]


def check_zero_gradient(value: Any) -> None:
    """Raises unless a value is one of the words, or a decay rate."""
    if value is None or isinstance(value, str):
        others = ("a number in [0, 1)",)
        check_choice("zero_gradient", value, ("follow", "skip"), others)
    else:
        check_decay("zero_gradient", value)


def kind_of(policy: ZeroGradient) -> OnZero:
    """Which of the words a policy is; a decay rate is "fade"."""
    kind: Any = policy if isinstance(policy, str) else "fade"
    return kind


def guarded(
    chain: optax.GradientTransformation, on_bad: NonFinite, on_zero: ZeroGradient
) -> optax.GradientTransformationExtraArgs:
    """A chain of stacks ``{name: (b, m, n)}`` that gets no unusual gradients.

    Its state is `GuardedState`. The policies are those of `on_matrices`; ``"raise"``
    acts as ``"propagate"`` here.
    """
    inner = optax.with_extra_args_support(chain)
    kind = kind_of(on_zero)

    def init_fn(params):
        none = lambda x: jnp.zeros(len(x), jnp.int32)
        counts = {n: none(x) for n, x in params.items()} if kind == "fade" else None
        return GuardedState(inner.init(params), counts)

    def update_fn(updates, state, params=None, **extra_args):
        grads = _examined(on_bad, updates)
        # For each policy that skips matrices, which of them.
        each = (grads.zero, kind == "skip"), (grads.bad, on_bad != "zero")
        keeps = [masks for masks, skips in each if skips]
        kept: list[Any] = []
        new: Any
        peaks = [(x, grads.peaks[n]) for n, x in grads.finite.items()]
        with within(keeps=keeps, kept=kept, peaks=peaks):
            new, inner_state = inner.update(
                grads.finite, state.inner_state, params, **extra_args
            )
        inner_state = jax.tree.map(keep_dtype, inner_state, state.inner_state)
        counts = state.zero_gradients
        if kind == "fade":
            new, counts = _faded(on_zero, grads.zero, counts, new)
        new = _marked(on_bad, kind, grads, new)
        return new, settled(keeps, kept, GuardedState(inner_state, counts), state)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _examined(on_bad: NonFinite, stacks: Stacks) -> _Gradients:
    """Finds in one reduction which gradients are not finite, and which are zero."""
    # Map NaN to inf: backends disagree on NaN comparisons, and `jax_debug_nans` would
    # raise.
    size = lambda x: jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.inf)
    peaks = {n: jnp.max(size(x), axis=(-2, -1)) for n, x in stacks.items()}
    bad = {n: jnp.isinf(peak) for n, peak in peaks.items()}
    zero = {n: peak == 0 for n, peak in peaks.items()}
    if on_bad == "zero":
        zero = {n: x | bad[n] for n, x in zero.items()}
    finite = {n: select(bad[n], 0, x) for n, x in stacks.items()}
    peaks = {n: jnp.where(bad[n], 0, peak) for n, peak in peaks.items()}
    return _Gradients(finite, bad, zero, peaks)


def _faded(
    decay: Any, zero: Stacks, counts: Stacks, new: Stacks
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Multiplies the k-th update without a gradient by ``decay**k``; the new counts."""
    counts = {n: _counted(zero[n], x) for n, x in counts.items()}

    def shrunk(x: jax.Array, zero: jax.Array, count: jax.Array) -> jax.Array:
        wide = np.promote_types(x.dtype, np.float32)
        rate = jnp.asarray(decay, wide) ** count.astype(wide)
        factor = jnp.where(zero, rate, 1)  # A product with 1 is exact.
        return (x.astype(wide) * factor[:, None, None]).astype(x.dtype)

    return {n: shrunk(x, zero[n], counts[n]) for n, x in new.items()}, counts


def _counted(zero: jax.Array, count: jax.Array) -> jax.Array:
    more: Any = optax.safe_increment(count)
    return jnp.where(zero, more, 0)


def _marked(
    on_bad: NonFinite, on_zero: OnZero, grads: _Gradients, new: Stacks
) -> dict[str, jax.Array]:
    """Updates of stacks, with zero or NaN where gradients are unusual."""
    new = dict(new)
    if on_zero == "skip":
        new = {n: select(grads.zero[n], 0, x) for n, x in new.items()}
    if on_bad == "zero":
        return new
    mark = jnp.zeros_like if on_bad == "skip" else _nan_where
    marks = {n: mark(bad)[:, None, None] for n, bad in grads.bad.items()}
    return {n: select(grads.bad[n], marks[n], x) for n, x in new.items()}


def _nan_where(bad: jax.Array) -> jax.Array:
    """NaN for these matrices; elsewhere there is none for `jax_debug_nans` to find."""
    return jnp.where(bad, jnp.inf, 0) * 0


def check_finite(leaves: Leaves, paths: Iterable[str]) -> None:
    """Adds a check to the program, by `checkify`, for each gradient of these paths."""
    for path in paths:
        finite = jnp.all(jnp.isfinite(leaves[path]))
        shown = repr(path).replace("{", "{{").replace("}", "}}")  # It is a format.
        checkify.check(finite, f"the gradient of {shown} must be finite, and is not")


def still(
    views: Mapping[str, MatrixView],
    gradients: Leaves,
    updates: Leaves,
    on_bad: NonFinite,
    on_zero: OnZero,
) -> dict[str, jax.Array]:
    """Updates of leaves, after weight decay, with zeros for skipped matrices.

    With ``on_bad="zero"``, a gradient that is not finite counts as zero.
    """
    skips_zeros = on_zero == "skip"
    if not skips_zeros and on_bad != "skip":
        return {}
    skips_bad = on_bad in ("skip", "zero")

    def of_leaf(view: MatrixView, g: jax.Array, x: jax.Array) -> jax.Array:
        def live(g: jax.Array, axes: tuple[int, ...]) -> jax.Array:
            some = jnp.any(g != 0, axis=axes, keepdims=True) | (not skips_zeros)
            finite = jnp.all(jnp.isfinite(g), axis=axes, keepdims=True)
            return some & finite if skips_bad else some

        if view.output_sections == view.reduction_sections == 1:
            axes = view.output_axes + view.reduction_axes
            return jnp.where(live(g, axes), x, 0)
        each = [
            jnp.broadcast_to(live(p, (1, 2)), p.shape)
            for p in view.to_matrices(g[None])
        ]
        return jnp.where(view.from_matrices(each)[0], x, 0)

    return {p: of_leaf(v, gradients[p], updates[p]) for p, v in views.items()}
