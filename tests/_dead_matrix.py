"""How far methods move a matrix whose gradient has become zero.

`python tests/_dead_matrix.py [method ...]` prints the table, in ordinary steps.
"""

import functools
import sys

import jax
import jax.numpy as jnp
from _registry import RECIPES

BEFORE, SHORT, LONG = 20, 200, 2180
SHAPE = (16, 32)


@functools.cache
def distances(name, policy):
    """What the matrix travels in SHORT and LONG steps, in steps of those before."""
    return measured(RECIPES[name](1e-2, weight_decay=0.0, zero_gradient=policy))


def measured(tx):
    """`distances` of an optimizer."""
    params = {"kernel": jax.random.normal(jax.random.key(1), SHAPE) / 4}
    draw = lambda i: jax.random.normal(jax.random.fold_in(jax.random.key(0), i), SHAPE)

    def step(carry, i):
        p, state = carry
        grads = {"kernel": jnp.where(i < BEFORE, draw(i), 0)}
        updates, state = tx.update(grads, state, p)
        p = jax.tree.map(jnp.add, p, updates)
        return (p, state), jnp.linalg.norm(updates["kernel"])

    def run():
        start = params, tx.init(params)
        return jax.lax.scan(step, start, jnp.arange(BEFORE + LONG))[1]

    norms = jax.jit(run)()
    ordinary, after = norms[BEFORE // 2 : BEFORE].mean(), norms[BEFORE:]
    return tuple(float(after[:n].sum() / ordinary) for n in (SHORT, LONG))


def main(names):
    print(f"{'':18}{'follow':>8} 200{'2180':>8}{'fade':>8} 200{'2180':>8}")
    for name in names or RECIPES:
        row = [*distances(name, "follow"), *distances(name, "fade")]
        print(f"{name:18}" + "".join(f"{x:12.1f}" for x in row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
