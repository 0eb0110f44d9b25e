"""What happens to a matrix whose gradient is not finite."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import checkify

NonFinite = Literal["propagate", "skip", "zero", "raise"]

Stacks = Mapping[str, jax.Array]


class Gradients(NamedTuple):
    """Stacks of gradients by name, and which of their matrices are unusual ``(b,)``.

    Attributes:
        finite: The gradients, with zeros for matrices that are not finite.
        bad: Which are not finite.
        zero: Which are zero.
    """

    finite: dict[str, jax.Array]
    bad: dict[str, jax.Array]
    zero: dict[str, jax.Array]


def check_finite(leaves: Mapping[str, jax.Array], paths: Iterable[str]) -> None:
    """Adds a check to the program, by `checkify`, for each gradient of these paths."""
    for path in paths:
        finite = jnp.all(jnp.isfinite(leaves[path]))
        shown = repr(path).replace("{", "{{").replace("}", "}}")  # It is a format.
        checkify.check(finite, f"the gradient of {shown} must be finite, and is not")


def examined(policy: NonFinite, stacks: Stacks) -> Gradients:
    """Finds in one reduction which gradients are not finite, and which are zero."""
    # Infinity stands for NaN, which backends compare in different ways and which
    # `jax_debug_nans` would find.
    size = lambda x: jnp.where(jnp.isfinite(x), jnp.abs(x), jnp.inf)
    peaks = {n: jnp.max(size(x), axis=(-2, -1)) for n, x in stacks.items()}
    bad = {n: jnp.isinf(peak) for n, peak in peaks.items()}
    zero = {n: peak == 0 for n, peak in peaks.items()}
    if policy == "zero":
        zero = {n: x | bad[n] for n, x in zero.items()}
    return Gradients({n: where(bad[n], 0, x) for n, x in stacks.items()}, bad, zero)


def settled(
    policy: NonFinite, bad: Stacks, new: Stacks, state: Any, old: Any
) -> tuple[dict[str, jax.Array], Any]:
    """Updates and state that a policy gives after a step with finite gradients.

    ``bad`` marks the matrices. ``"raise"`` acts as ``"propagate"`` here.
    """
    if policy == "zero":
        return dict(new), state
    mark = jnp.zeros_like if policy == "skip" else _nan_where
    new = {n: where(bad[n], mark(bad[n])[:, None, None], x) for n, x in new.items()}

    def kept(path, after, before):
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        of_group = next((name for name in names if name in bad), None)
        if of_group is None or jnp.ndim(after) == 0:
            return after
        return where(bad[of_group], before, after)

    return new, jax.tree_util.tree_map_with_path(kept, state, old)


def _nan_where(bad: jax.Array) -> jax.Array:
    """NaN for these matrices; elsewhere there is none for `jax_debug_nans` to find."""
    return jnp.where(bad, jnp.inf, 0) * 0


def where(matrices: jax.Array, value: Any, x: jax.Array) -> jax.Array:
    """Replaces some matrices of a stack, ``(b,)``, by a value in its dtype."""
    each = matrices.reshape(matrices.shape + (1,) * (x.ndim - 1))
    return jnp.where(each, jnp.asarray(value).astype(x.dtype), x)
