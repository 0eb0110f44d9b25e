"""`max_batch` of recipes: it bounds stacks, and changes nothing else."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _registry import RECIPES, TABLE, small
from _walks import walk

import optax_matrix as om

CORE = ("muoneq", "soap", "galore")
EACH = [
    name if name in CORE else pytest.param(name, marks=pytest.mark.slow)
    for name in RECIPES
    if name != "alice-carry"  # Stacks take turns there, so the bound moves renewals.
]


def _params():
    keys = jax.random.split(jax.random.key(0), 3)
    kernels = [jax.random.normal(key, (6, 6)) / 3 for key in keys]
    return {"layers": {str(i): {"up": {"kernel": x}} for i, x in enumerate(kernels)}}


def _states(tx, steps=2):
    """The parameters after some steps, and the numbers of matrices in the stacks."""
    params = _params()
    state = tx.init(params)
    update = jax.jit(tx.update)
    for i in range(steps):
        grads = jax.tree.map(lambda p, i=i: jnp.sin(3 * p + i), params)
        updates, state = update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    manifest = om.tree.OnMatricesState(*state).manifest
    return params, sorted(len(ids) for ids in manifest.values())


@pytest.mark.broad
@pytest.mark.daily("muoneq", "galore")
@pytest.mark.parametrize("name", EACH)
def test_bound_changes_nothing_but_the_stacks(name):
    whole, together = _states(RECIPES[name](1e-2))
    split, apart = _states(RECIPES[name](1e-2, max_batch=1))
    assert together == [3]
    assert apart == [1, 1, 1]
    for x, y in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5)


@walk(("name", "value"), itertools.product(TABLE, [0, -1, 1.5, True, "3"]))
def test_wrong_bound_is_refused_by_the_factory(name, value):
    with pytest.raises(ValueError, match="`max_batch` must"):
        small(name)(1e-3, max_batch=value)
