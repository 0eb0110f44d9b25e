"""The rotate block in float32 and with half-precision momenta, against float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.linalg import scale_rows, sinkhorn

BASES = {
    "sign": optax.scale_by_sign(),
    "row_norm": om.equilibrate(partial(scale_rows, eps=0.0)),
    "sinkhorn": om.equilibrate(sinkhorn),
    "adam": om.scale_by_second_moment(0.95),
}
DAILY = ("sign", "sinkhorn")
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in BASES if n not in DAILY]
SHAPES = {"tall": (64, 40), "wide": (40, 64), "square": (48, 48)}
STEPS = 20


def updates_of(tx, grads):
    """Updates of a dict of streams ``(steps, m, n)``."""

    def body(state, g):
        updates, state = tx.update(g, state)
        return state, updates

    run = jax.jit(lambda grads: jax.lax.scan(body, tx.init(first), grads)[1])
    first = jax.tree.map(lambda x: jnp.zeros_like(x[0]), grads)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), run(grads))


def cosines(x, y):
    size = lambda a: np.sqrt((a * a).sum((-2, -1)))
    return (x * y).sum((-2, -1)) / (size(x) * size(y))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "policy", ["aro", pytest.param("eigen", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("side", ["out", "in"])
@pytest.mark.parametrize("base", [*DAILY, *SLOW])
def test_float32_follows_float64(base, side, policy):
    """Of a momentum of full rank no entry is noise.

    One sign more or less turns the rotation, which has the inverse of M D' in it, so
    far that the cosine falls below 0.999. (With side="both" any two precisions part
    within ten steps: each rotation then amplifies the errors of the other.)
    """
    average = om.momentum(0.95)
    tx = optax.chain(average, om.rotate(BASES[base], side=side, policy=policy))
    grads = {n: gaussian(STEPS, *s, seed=7) for n, s in SHAPES.items()}
    narrow = jax.tree.map(jnp.float32, grads)
    wide = jax.tree.map(jnp.float64, narrow)
    got, want = updates_of(tx, narrow), updates_of(tx, wide)
    for name in SHAPES:
        # An entry within rounding of zero has either sign: one in an update at most.
        # Adam's first step is the sign.
        either = 2 / got[name][0].size if base in ("sign", "adam") else 0
        assert cosines(got[name], want[name]).min() > 0.9999 - either, name
