"""Three chains that between them do what recipes do to stacks of matrices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class NoiseState(NamedTuple):
    """Step counter, a key per matrix, a sketch per matrix."""

    count: Any
    keys: dict[str, Any]
    sketch: dict[str, Any]


def elementwise(layout):
    """Momentum and second moments."""
    del layout
    soft_sign = optax.stateless_with_tree_map(lambda x, _: x / (1 + jnp.abs(x)))
    return optax.chain(optax.trace(0.9), optax.scale_by_rms(), soft_sign)


def decomposition(layout):
    """Momentum, then Q of QR of the long side."""
    del layout

    def q_factor(x, _):
        wide = x.shape[-1] > x.shape[-2]
        q = jnp.linalg.qr(x.mT if wide else x)[0]
        return q.mT if wide else q

    return optax.chain(optax.trace(0.9), optax.stateless_with_tree_map(q_factor))


def random_with_cond(layout):
    """A sketch by random numbers of each matrix, drawn anew at every other step."""

    def init(stacks):
        fold = lambda i: jax.random.fold_in(
            jax.random.fold_in(jax.random.key(0), i[0]), i[1]
        )
        keys = {n: jax.vmap(fold)(jnp.asarray(layout.groups[n].ids)) for n in stacks}
        sketch = {n: jnp.zeros((*x.shape[:-2], 2)) for n, x in stacks.items()}
        return NoiseState(jnp.zeros((), jnp.int32), keys, sketch)

    def fresh(x, key, count):
        noise = jax.random.uniform(jax.random.fold_in(key, count), (x.shape[-1], 2))
        return jnp.sqrt(jnp.sum((x @ noise) ** 2, -2))

    def update(updates, state, params=None):
        del params
        draw = lambda: {
            n: jax.vmap(fresh, (0, 0, None))(x, state.keys[n], state.count)
            for n, x in updates.items()
        }
        sketch = jax.lax.cond(state.count % 2 == 0, draw, lambda: state.sketch)
        new = {n: x / (1 + sketch[n][..., :1, None]) for n, x in updates.items()}
        return new, NoiseState(state.count + 1, state.keys, sketch)

    return optax.GradientTransformation(init, update)


CHAINS = {
    "elementwise": elementwise,
    "decomposition": decomposition,
    "random": random_with_cond,
}
# Floats of state per matrix element, bytes of it per matrix, and of replicated scalars.
STATE_BYTES = {
    "elementwise": (2, 0, 0),
    "decomposition": (1, 0, 0),
    "random": (0, 8 + 8, 4),  # A key of two uint32, a sketch of two floats; a counter.
}
