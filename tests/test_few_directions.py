"""Gradients of few directions for 20,000 steps, until averages of the rest are noise.

Quick forms, with averages that forget fast, are in ``recipes/test_kl_shampoo.py``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian
from _registry import RECIPES, TABLE

SHAPE, STEPS, EARLY = (12, 20), 20_000, 500
USUAL = slice(20, 200)
# Sums grow with the number of gradients, and averages do not.
GROWTH = {"shampoo": STEPS / EARLY}
VARIANTS = ("shampoo-averages", "racs-corrected", "aro-adam", "alice-carry")
CASES = {name: RECIPES[name] for name in (*TABLE, *VARIANTS)}
CASES["kl_soap-both"] = TABLE["kl_soap"]
CASES["kl_shampoo-bfloat16"] = functools.partial(
    TABLE["kl_shampoo"], mu_dtype="bfloat16"
)
# Single updates of the others may be far above the median where gradients are at times.
BY_SPECTRUM = [name for name in CASES if name.startswith("kl_")] + ["ldadam"]


def low_rank(rank):
    left, right = gaussian(SHAPE[0], rank, seed=rank), gaussian(rank, SHAPE[1])

    def draw(key):
        return left @ jax.random.normal(key, (rank, rank)) @ right

    return draw


def one_row(key):
    which, what = jax.random.split(key)
    at = jax.random.randint(which, (SHAPE[0], 1), 0, SHAPE[0])[0]
    return (jnp.arange(SHAPE[0]) == at)[:, None] * jax.random.normal(what, SHAPE[1:])


KINDS = {"rank one": low_rank(1), "rank three": low_rank(3), "one row": one_row}


def gradients(t):
    """One of each kind, at every step and at every other step."""
    found = {}
    for i, (name, draw) in enumerate(KINDS.items()):
        key = jax.random.fold_in(jax.random.key(i), t)
        found[name] = {"kernel": 0.01 * draw(key).T}
        found[f"{name}, at times"] = {"kernel": 0.01 * draw(key).T * (t % 2 == 0)}
    return found


def run(tx):
    """The norm of each update, and the largest number of each state."""
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda g: np.float32(draw(g.shape)) / 5, gradients(0))

    def body(carry, t):
        params, state = carry
        updates, state = tx.update(gradients(t), state, params)
        floats = [x for x in jax.tree.leaves(state) if x.dtype.kind == "f" and x.size]
        largest = [jnp.max(abs(x)).astype(jnp.float32) for x in floats]
        norms = {name: jnp.linalg.norm(u["kernel"]) for name, u in updates.items()}
        new = optax.apply_updates(params, updates), state
        return new, (norms, jnp.max(jnp.stack([jnp.float32(0), *largest])))

    def scan(params):
        return jax.lax.scan(body, (params, tx.init(params)), jnp.arange(STEPS))[1]

    # Twenty thousand steps take longer than compiling them well.
    fast = {"xla_backend_optimization_level": 3}
    return jax.tree.map(np.asarray, jax.jit(scan, compiler_options=fast)(params))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_update_grows_when_averages_have_decayed(name):
    """KL-Shampoo's became NaN, and with a momentum in bfloat16 48 times the usual."""
    norms, largest = run(CASES[name](1e-3, weight_decay=0.0))
    for kind, x in norms.items():
        assert np.isfinite(x).all(), kind
        assert x[EARLY:].max() < 10 * x[:EARLY].max(), kind
        usual, late = (np.median(x[at]) for at in (USUAL, slice(EARLY, None)))
        if name in BY_SPECTRUM:
            assert x[USUAL.start :].max() < 30 * usual, kind
            assert late > 0.1 * usual, kind
    assert largest[EARLY:].max() <= GROWTH.get(name, 5) * largest[:EARLY].max()
