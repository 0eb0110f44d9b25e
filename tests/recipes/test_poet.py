"""`poet` and `oft`: what goes where, at which rate, and how large the state is."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.layout import OnMatricesState
from optax_matrix.linalg import cayley

PARAMS = {
    "attention": {"kernel": jnp.asarray(gaussian(2, 8, 6), jnp.float32)},
    "norm": jnp.asarray(gaussian(8), jnp.float32),
}


def one_update(tx, grads, params=PARAMS):
    updates, state = jax.jit(tx.update)(grads, tx.init(params), params)
    return updates, state


def test_zero_gradients_decay_other_leaves_and_leave_matrices_alone():
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    tx = om.poet(1e-2, block=4, weight_decay=0.5, other_learning_rate=0.1)
    updates, _ = one_update(tx, zero)
    assert not updates["attention"]["kernel"].any()
    np.testing.assert_allclose(updates["norm"], -0.05 * PARAMS["norm"], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "ratio"),
    [
        ({"block": 256}, 5.0),
        ({"block": 64}, 1.25),
        ({"variant": "full", "block": 0.5}, 5.0),
        ({"variant": "full", "block": {"in": 0.25, "out": 0.125}}, 2.5),
    ],
)
def test_other_leaves_have_the_papers_base_rate(options, ratio):
    """It does not go with the block: by the paper's rule the product is constant."""
    params = {"norm": PARAMS["norm"]}
    tx = om.poet(1e-3, weight_decay=0.0, **options)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(jnp.abs(updates["norm"]), ratio * 1e-3, rtol=1e-4)


def state_of(tx, params):
    is_ours = lambda x: isinstance(x, OnMatricesState)
    nodes = jax.tree.leaves(jax.eval_shape(tx.init, params), is_leaf=is_ours)
    (ours,) = filter(is_ours, nodes)
    return ours.inner_state


def size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


def test_state_is_three_times_what_is_trained_and_w0():
    m, n, b = 96, 64, 32
    params = {"kernel": jax.ShapeDtypeStruct((n, m), jnp.bfloat16)}
    block = state_of(om.poet(1e-3, block=b), params)
    assert size(block.q) == (m + n) * (b - 1) // 2
    assert size(block.inner_state) == 2 * size(block.q) + 1
    assert size(block.frame) == m * n
    assert size((block.perms, block.applied)) == m + n + 1
    full = state_of(om.poet(1e-3, variant="full", block=0.5, hold="recovered"), params)
    assert size(full.q) == sum(k * (k - 1) // 2 for k in (m // 2, n // 2))
    assert full.frame is full.applied is None
    oft = state_of(om.oft(1e-3, block=b), params)
    assert size(oft.q) == n * (b - 1) // 2


def test_kernel_and_terms_reach_the_primitives():
    grads = jax.tree.map(lambda x: jnp.sin(7 * x), PARAMS)
    moved = lambda **options: one_update(om.poet(0.15, block=4, **options), grads)[0]
    exact = moved(orthogonal=cayley)["attention"]["kernel"]
    w = PARAMS["attention"]["kernel"]
    gap = {
        terms: float(jnp.abs(moved(terms=terms)["attention"]["kernel"] - exact).max())
        for terms in (2, 4)
    }
    assert gap[2] > 5 * gap[4] > 1e-5
    sv = lambda x: np.linalg.svd(np.asarray(x), compute_uv=False)
    np.testing.assert_allclose(sv(w + exact), sv(w), rtol=1e-5)


def test_schedules_are_followed():
    grads = jax.tree.map(lambda x: jnp.sin(7 * x), PARAMS)
    zero_first = lambda count: jnp.where(count == 0, 0.0, 1e-2)
    tx = om.poet(zero_first, block=4)
    updates, state = one_update(tx, grads)
    assert not updates["attention"]["kernel"].any()
    updates, _ = jax.jit(tx.update)(grads, state, PARAMS)
    assert updates["attention"]["kernel"].any()


@pytest.mark.parametrize("recipe", [om.poet, om.oft])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": None}, "`learning_rate` must be a number or a schedule"),
        ({"b1": 1.0}, r"`b1` must be in \[0, 1\), got 1.0"),
        ({"eps": -1.0}, "`eps` must not be negative"),
        ({"terms": 0}, "`terms` must be a positive int, got 0"),
        ({"block": 0}, "`block` must be an int of at least 2, got 0"),
        ({"weight_decay": -0.1}, "`weight_decay` must not be negative"),
        ({"other": 1e-3}, "`other` must be a gradient transformation"),
    ],
    ids=lambda x: "" if isinstance(x, str) else next(iter(x)),
)
def test_wrong_arguments_are_refused(recipe, options, message):
    with pytest.raises(ValueError, match=message):
        recipe(**{"learning_rate": 1e-3, **options})


def test_hyperparameters_can_be_injected():
    tx = om.inject_hyperparams(om.poet)(optax.constant_schedule(1e-2), block=4)
    state = tx.init(PARAMS)
    assert set(state.hyperparams) >= {"learning_rate", "b1", "b2", "eps"}
    updates, _ = jax.jit(tx.update)(PARAMS, state, PARAMS)
    assert bool(jnp.isfinite(updates["attention"]["kernel"]).all())
