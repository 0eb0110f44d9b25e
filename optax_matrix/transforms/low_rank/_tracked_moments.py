"""Adam's moments of coordinates, transported from one basis to the next (LDAdam)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from optax_matrix.linalg.precision import project
from optax_matrix.linalg.scale import safe_divide, safe_root
from optax_matrix.transforms.second_moments.bounds import bounded


@dataclasses.dataclass(frozen=True)
class TrackedMoments:
    """The steps of Adam's moments; the second moment is held as its square root.

    Attributes:
        b1: Decay rate of the momentum.
        b2: Decay rate of the second moment.
    """

    b1: ArrayLike
    b2: ArrayLike

    def mean(self, mu: jax.Array, t: jax.Array) -> jax.Array:
        """The bias-corrected momentum of ``t`` steps."""
        return mu / _weight(self.b1, t, mu.dtype)

    def carried_root(self, c: jax.Array, mu: jax.Array, root: jax.Array, t: jax.Array):
        """The square root of LDAdam's second moment in a new basis, c its overlap."""
        # That is |C^2 (V - M^2) + (C M)^2| with bias-corrected moments.
        weight = _weight(self.b2, t, root.dtype)
        m, r = self.mean(mu, t), root / jnp.sqrt(weight)
        # Only entries of one column mix, so each column is normalized separately.
        size = jnp.max(jnp.maximum(jnp.abs(m), r), axis=-2, keepdims=True)
        size = jax.lax.stop_gradient(size)  # It cancels out.
        m, r = safe_divide(m, size), safe_divide(r, size)
        variance = project(c * c, r * r - m * m) + project(c, m) ** 2
        return safe_root(jnp.abs(variance) * weight) * size

    def step(self, sigma: jax.Array, mu: jax.Array, root: jax.Array, t: jax.Array):
        """Adam's direction at step t in one basis, and the new moments."""
        b1, b2 = (jnp.asarray(b, sigma.dtype) for b in (self.b1, self.b2))
        mu = b1 * mu + (1 - b1) * sigma
        root = jnp.hypot(jnp.sqrt(b2) * root, jnp.sqrt(1 - b2) * sigma)
        weight = _weight(b2, t, root.dtype)
        ratio = safe_divide(self.mean(mu, t), root / jnp.sqrt(weight))
        # A carried second moment may be smaller than the momentum allows.
        return bounded(ratio, jnp.sqrt(weight / (1 - b2))), mu, root


def _weight(b: ArrayLike, t: jax.Array, dtype: DTypeLike) -> jax.Array:
    """The total weight ``1 - b**t`` of an average; 1 before the first step."""
    return jnp.where(t == 0, 1, 1 - jnp.asarray(b, dtype) ** t.astype(dtype))
