"""Chains that between them do what recipes do to stacks of matrices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_matrix.linalg import qr_householder
from optax_matrix.linalg.lapack import qr
from optax_matrix.transforms import project_low_rank, subspace_basis

_SIDE = 16  # No matrix of the tests is wider.


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
        q, _ = qr(x.mT if wide else x)
        return q.mT if wide else q

    return optax.chain(optax.trace(0.9), optax.stateless_with_tree_map(q_factor))


def random_with_cond(layout):
    """A sketch by random numbers of each matrix, drawn anew at every other step."""

    def init(stacks):
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        ids = {n: jnp.asarray(layout.groups[n].ids) for n in stacks}
        keys = _together(lambda x: fold(jax.random.key(0), x[:, 0]), ids)
        keys = _together(
            lambda k, x: jax.vmap(jax.random.fold_in)(k, x[:, 1]), keys, ids
        )
        sketch = {n: jnp.zeros((*x.shape[:-2], 2)) for n, x in stacks.items()}
        return NoiseState(jnp.zeros((), jnp.int32), keys, sketch)

    def update(updates, state, params=None):
        del params

        def draw_one(key):
            return jax.random.uniform(jax.random.fold_in(key, state.count), (_SIDE, 2))

        def draw():
            noise = _together(jax.vmap(draw_one), state.keys)
            project = lambda x, noise: x @ noise[:, : x.shape[-1]]
            return {
                n: jnp.linalg.norm(project(x, noise[n]), axis=-2)
                for n, x in updates.items()
            }

        sketch = jax.lax.cond(state.count % 2 == 0, draw, lambda: state.sketch)
        new = {n: x / (1 + sketch[n][..., :1, None]) for n, x in updates.items()}
        return new, NoiseState(state.count + 1, state.keys, sketch)

    return optax.GradientTransformation(init, update)


def low_rank(layout):
    """A tracked basis, renewed at every other step, whose moments go with it."""
    del layout
    return project_low_rank(
        optax.trace(0.9),
        rank=2,
        basis=subspace_basis(0.9, leading=1, qr=qr_householder),
        update_interval=2,
        transport="carry",
    )


def _together(f, *trees):
    """`f` of the rows of all groups at once: fewer random generators to compile."""
    names = list(trees[0])
    rows = f(*(jnp.concatenate([tree[n] for n in names]) for tree in trees))
    ends = np.cumsum([len(trees[0][n]) for n in names])
    return dict(zip(names, jnp.split(rows, ends[:-1]), strict=True))


CHAINS = {
    "elementwise": elementwise,
    "decomposition": decomposition,
    "random": random_with_cond,
}
MORE_CHAINS = CHAINS | {"low_rank": low_rank}
# Floats of state per matrix element, bytes of it per matrix, and of replicated scalars.
STATE_BYTES = {
    "elementwise": (2, 0, 0),
    "decomposition": (1, 0, 0),
    "random": (0, 8 + 8, 4),  # A key of two uint32, a sketch of two floats; a counter.
}
