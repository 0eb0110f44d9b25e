"""Adam's moments, carried from one basis of coordinates to the next (LDAdam)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.linalg.products import full_dot
from optax_matrix.transforms.numerics import safe_divide


@dataclasses.dataclass(frozen=True)
class TrackedMoments:
    """Adam's moments of coordinates, one step at a time.

    Attributes:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment, of which the root is held.
    """

    b1: ArrayLike
    b2: ArrayLike

    def mean(self, mu: jax.Array, t: jax.Array) -> jax.Array:
        """The momentum of ``t`` steps without its bias."""
        return mu / _weight(self.b1, t, mu.dtype)

    def carried_root(self, c: jax.Array, mu: jax.Array, root: jax.Array, t: jax.Array):
        r"""The root of the second moment in a new basis.

        Args:
            c: :math:`C = P_{new}^\top P_{old}`, ``(..., r, r)``.
            mu: The momentum in the old basis, ``(..., r, n)``.
            root: The root in the old basis.
            t: Number of steps in them.

        Returns:
            That of LDAdam's estimate,
            :math:`|C^{\circ 2} (V - M^2) + (C M)^2|` without bias.
        """
        weight = _weight(self.b2, t, root.dtype)
        m, r = self.mean(mu, t), root / jnp.sqrt(weight)
        # The rows of a column mix and nothing else: each column in a scale of its own.
        size = jnp.max(jnp.maximum(jnp.abs(m), r), axis=-2, keepdims=True)
        m, r = safe_divide(m, size), safe_divide(r, size)
        variance = full_dot(c * c, r * r - m * m) + full_dot(c, m) ** 2
        return jnp.sqrt(jnp.abs(variance) * weight) * size

    def step(self, sigma: jax.Array, mu: jax.Array, root: jax.Array, t: jax.Array):
        """One step in one basis.

        Args:
            sigma: Coordinates of the gradient, ``(..., r, n)``.
            mu: The momentum before.
            root: The root of the second moment before.
            t: Number of steps, this one included.

        Returns:
            Adam's direction, and the new ``mu`` and ``root``.
        """
        b1, b2 = (jnp.asarray(b, sigma.dtype) for b in (self.b1, self.b2))
        mu = b1 * mu + (1 - b1) * sigma
        root = jnp.hypot(jnp.sqrt(b2) * root, jnp.sqrt(1 - b2) * sigma)
        size = root / jnp.sqrt(_weight(b2, t, root.dtype))
        return safe_divide(self.mean(mu, t), size), mu, root


def _weight(b: ArrayLike, t: jax.Array, dtype: DTypeLike) -> jax.Array:
    """``1 - b**t``, and 1 for the average of nothing."""
    return jnp.where(t == 0, 1, 1 - jnp.asarray(b, dtype) ** t)
