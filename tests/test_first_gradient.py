"""Matrices whose first gradients are zero or NaN, in every recipe.

So are those behind a projection that starts at zero (adaLN-zero, LoRA's B).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _registry import RECIPES

STEPS = 12
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in RECIPES if n != "soap"]
recipes = pytest.mark.parametrize("name", ["soap", *SLOW])


def sizes(tx, first):
    """Norms of updates for one gradient of rank one, and for another first one."""
    rng = np.random.default_rng(0)
    g = np.outer(rng.standard_normal(20), rng.standard_normal(12)).astype(np.float32)
    grads = jnp.stack([first * g] + [g] * (STEPS - 1))
    params = {"up": {"kernel": jnp.ones((20, 12))}}

    def step(state, x):
        updates, state = tx.update({"up": {"kernel": x}}, state, params)
        return state, jnp.linalg.norm(updates["up"]["kernel"])

    return jax.jit(lambda g: jax.lax.scan(step, tx.init(params), g)[1])(grads)


@pytest.mark.broad
@recipes
@pytest.mark.parametrize("first", [0.0, jnp.nan])
def test_updates_have_their_size_from_the_first_gradient_on(name, first):
    tx = RECIPES[name](1e-3, weight_decay=0.0)
    late, usual = sizes(tx, first)[1:], sizes(tx, 1.0)
    # Bias corrections that count the first step make the next one smaller.
    assert (late < 1.5 * usual[:-1].max()).all(), (late, usual)
    assert (late > 0.4 * usual[:-1].min()).all(), (late, usual)
    np.testing.assert_allclose(late[-1], usual[-2], rtol=0.3)
