"""What happens to a matrix whose gradient is not finite."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from optax_matrix._surroundings.keeping import select

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
    return Gradients({n: select(bad[n], 0, x) for n, x in stacks.items()}, bad, zero)


def keeping(on_bad: NonFinite, on_zero: str, grads: Gradients) -> list[Stacks]:
    """Which matrices keep their state, by stack, for each of the two policies."""
    each = (grads.zero, on_zero == "skip"), (grads.bad, on_bad != "zero")
    return [masks for masks, keep in each if keep]


def marked(
    on_bad: NonFinite, on_zero: str, grads: Gradients, new: Stacks
) -> dict[str, jax.Array]:
    """Updates of stacks, as the policies have them for unusual gradients.

    ``"raise"`` acts as ``"propagate"`` here.
    """
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
