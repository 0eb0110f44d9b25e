"""What happens to a matrix whose gradient is zero, as long as it is.

Most methods normalize their updates, so that a momentum moves a matrix at full size
however small it has become.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from optax_matrix._arguments import check_choice, check_decay
from optax_matrix.matrices.view import MatrixView

Stacks = Mapping[str, jax.Array]
Leaves = Mapping[str, jax.Array]

OnZero = Literal["fade", "skip", "follow"]  # In recipes.
ZeroGradient = ArrayLike | Literal["skip", "follow"]
"""In `on_matrices`, where the decay rate of the momentum takes the place of "fade"."""


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


def no_zeros(stacks: Stacks) -> dict[str, jax.Array]:
    """The counts before the first gradient."""
    return {n: jnp.zeros(len(x), jnp.int32) for n, x in stacks.items()}


def faded(
    decay: ArrayLike, zero: Stacks, counts: Stacks, new: Stacks
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


def still(
    views: Mapping[str, MatrixView],
    gradients: Leaves,
    updates: Leaves,
    on_zero: OnZero,
    on_bad: str,
) -> dict[str, jax.Array]:
    """Updates of leaves, with zeros for matrices that a policy skips.

    ``on_bad`` is the policy for gradients that are not finite; ``"zero"`` takes them
    for zero.
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
