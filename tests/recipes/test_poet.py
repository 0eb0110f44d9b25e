"""`poet` and `oft`: what goes where, at which rate, and how large the state is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, orthonormal
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.tree.state import OnMatricesState

PARAMS = {
    "attention": {"kernel": np.float32(gaussian(2, 8, 6))},
    "norm": np.float32(gaussian(8)),
}


def one_update(tx, grads, params=PARAMS):
    updates, state = jax.jit(tx.update)(grads, tx.init(params), params)
    return updates, state


@pytest.mark.slow
def test_zero_gradients_decay_other_leaves_and_leave_matrices_alone():
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    options = {"weight_decay": 0.5, "weight_decay_mask": True}
    tx = om.poet(1e-2, block=4, other_learning_rate=0.1, **options)
    updates, _ = one_update(tx, zero)
    assert not updates["attention"]["kernel"].any()
    np.testing.assert_allclose(updates["norm"], -0.05 * PARAMS["norm"], rtol=1e-6)


@pytest.mark.quick("options1-1.25")
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
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
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
    # Both moments, and for each side the sums of their weights.
    assert size(block.inner_state) == 2 * size(block.q) + 4
    assert size(block.frame) == m * n
    assert size((block.perms, block.applied)) == m + n + 1
    full = state_of(om.poet(1e-3, variant="full", block=0.5, hold="recovered"), params)
    assert size(full.q) == sum(k * (k - 1) // 2 for k in (m // 2, n // 2))
    assert full.frame is full.applied is None
    oft = state_of(om.oft(1e-3, block=b), params)
    assert size(oft.q) == n * (b - 1) // 2


@pytest.mark.slow
def test_kernel_and_terms_reach_the_primitives():
    grads = jax.tree.map(lambda x: jnp.sin(7 * x), PARAMS)
    moved = lambda **options: one_update(om.poet(0.15, block=4, **options), grads)[0]
    exact = moved()["attention"]["kernel"]
    w = PARAMS["attention"]["kernel"]
    gap = {
        terms: float(jnp.abs(moved(terms=terms)["attention"]["kernel"] - exact).max())
        for terms in (2, 4)
    }
    assert gap[2] > 5 * gap[4] > 1e-5
    sv = lambda x: np.linalg.svd(np.asarray(x), compute_uv=False)
    np.testing.assert_allclose(sv(w + exact), sv(w), rtol=1e-5)


@pytest.mark.broad
def test_schedules_are_followed():
    grads = jax.tree.map(lambda x: jnp.sin(7 * x), PARAMS)
    zero_first = lambda count: jnp.where(count == 0, 0.0, 1e-2)
    tx = om.poet(zero_first, block=4)
    updates, state = one_update(tx, grads)
    assert not updates["attention"]["kernel"].any()
    updates, _ = jax.jit(tx.update)(grads, state, PARAMS)
    assert updates["attention"]["kernel"].any()


@pytest.mark.broad
@pytest.mark.parametrize(
    "quantized", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_rounding_on_the_way_from_the_owners_is_no_edit(cpus, quantized):
    mesh = jax.make_mesh(
        (2, 2), ("fsdp", "tp"), (AxisType.Explicit,) * 2, devices=cpus[:4]
    )
    sharding = NamedSharding(mesh, P("fsdp", "tp"))
    params = {"kernel": jax.device_put(gaussian(8, 8).astype(np.float32), sharding)}
    placement = om.owners(("fsdp", "tp"), wire_dtype=jnp.bfloat16)
    placement = om.quantized(placement, min_size=4) if quantized else placement
    tx = om.poet(0.01, block=4, placement=placement)

    @jax.jit
    def step(params, state, noise):
        grads = jax.tree.map(lambda w: w * noise, params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    frame = lambda state: optax.tree.get(state, "frame")
    state = jax.jit(tx.init)(params)
    first, start = jax.tree.map(np.asarray, (frame(state), params))
    for t in range(3):
        params, state = step(params, state, gaussian(8, 8, seed=t).astype(np.float32))
    jax.tree.map(np.testing.assert_array_equal, frame(state), first)
    assert np.abs(params["kernel"] - start["kernel"]).max() > 0.01


@pytest.mark.slow
def test_drops_into_an_nnx_training_loop():
    model = nnx.Linear(6, 8, rngs=nnx.Rngs(0))
    first = np.asarray(model.kernel[...])
    optimizer = nnx.Optimizer(
        model, om.poet(0.02, block=4, merge_interval=5), wrt=nnx.Param
    )
    x = jnp.asarray(gaussian(16, 6), jnp.float32)
    y = x @ jnp.asarray(orthonormal(8, 6).T * 2, jnp.float32)

    @nnx.jit
    def train_step(model, optimizer):
        loss = lambda model: jnp.mean((model(x) - y) ** 2)
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    losses = [float(train_step(model, optimizer)) for _ in range(30)]
    assert losses[-1] < 0.9 * losses[0]
    sv = lambda w: np.linalg.svd(np.asarray(w, np.float64), compute_uv=False)
    np.testing.assert_allclose(sv(model.kernel[...]), sv(first), rtol=1e-2)


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


@pytest.mark.parametrize("variant", ["block", "full"])
@pytest.mark.parametrize("block", [2.5, 256.0, float("inf"), {"in": 2.5, "out": 4}])
def test_a_block_of_a_size_that_is_no_int_is_refused(block, variant):
    """Only a fraction of the side, up to 1, may be a float."""
    makers = om.poet, partial(om.spo, optax.sgd(0.1)), om.reparameterize
    for make in makers:
        rate = {"learning_rate": 1e-3} if make is om.poet else {}
        with pytest.raises(ValueError, match="`block` must be an int of at least 2"):
            make(**rate, block=block, variant=variant)


@pytest.mark.slow
def test_hyperparameters_can_be_injected():
    tx = om.inject_hyperparams(om.poet)(optax.constant_schedule(1e-2), block=4)
    state = tx.init(PARAMS)
    assert set(state.hyperparams) >= {"learning_rate", "b1", "b2", "eps"}
    updates, _ = jax.jit(tx.update)(PARAMS, state, PARAMS)
    assert bool(jnp.isfinite(updates["attention"]["kernel"]).all())


@pytest.mark.broad
def test_decay_of_q_and_merges_when_needed_reach_the_primitives():
    grads = jax.tree.map(lambda x: jnp.sin(7 * x), PARAMS)
    tx = om.poet(0.1, block=4, b1=0.0, q_decay=0.5, merge_interval=None, merge_at=0.4)
    step, q = jax.jit(tx.update), lambda state: optax.tree.get(state, "q")
    updates, first = step(grads, tx.init(PARAMS), PARAMS)
    params = optax.apply_updates(PARAMS, updates)
    zero = jax.tree.map(jnp.zeros_like, grads)
    _, second = step(zero, first, params)
    shrunk = lambda new, old: np.testing.assert_allclose(new, 0.95 * old, rtol=1e-5)
    jax.tree.map(shrunk, q(second), q(first))
    assert all(jnp.any(x != 0) for x in jax.tree.leaves(q(first)))
    merges = lambda state: jax.tree.leaves(optax.tree.get(state, "merges"))
    assert not any(map(jnp.any, merges(second)))
    state = first
    for _ in range(4):
        updates, state = step(grads, state, params)
        params = optax.apply_updates(params, updates)
    assert all(map(jnp.all, merges(state)))


@pytest.mark.slow
def test_integers_of_numpy_are_blocks():
    """AdamW's rate is that of the block."""
    params = {"kernel": jnp.eye(8), "bias": jnp.ones(3)}
    rates = []
    for block in (4, np.int64(4), {"in": np.int64(4), "out": np.int32(4)}):
        tx = om.poet(1e-3, block=block)
        updates, _ = tx.update(params, tx.init(params), params)
        rates.append(float(updates["bias"][0]))
    assert rates == pytest.approx([-1e-3 * 5 * 4 / 256] * 3, rel=1e-4)
