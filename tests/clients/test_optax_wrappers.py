"""Optax's wrappers around a recipe do to it what they do to any optimizer.

`MultiSteps`, `apply_if_finite` on finite gradients, and `masked` and `partition` of
everything are in `tests/test_contract.py`, for every recipe.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import SHAPES, tree
from clients._training import RECIPES, assert_close, assert_equal

import optax_matrix as om

pytestmark = pytest.mark.broad
RATE = 0.01
SHAPES = {name: SHAPES[name] for name in ("wide", "square", "embed", "temperature")}
PARAMS, TARGET, *STREAM = (tree(seed, shapes=SHAPES) for seed in range(4))
recipes = pytest.mark.parametrize("name", RECIPES)


def make(name):
    return getattr(om, name)(RATE, **RECIPES[name])


def loss(params):
    errors = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), params, TARGET)
    return jax.tree.reduce(jnp.add, errors)


def part(pytree, names):
    return {name: pytree[name] for name in names}


def run(tx, params, streams):
    """All updates on a list of gradients, and the last state."""
    state, updates, update = tx.init(params), [], jax.jit(tx.update)
    for grads in streams:
        new, state = update(grads, state, params)
        updates.append(new)
    return updates, state


@recipes
def test_masked_leaves_what_it_masks_alone(name):
    ours = ("wide", "square")
    mask = {key: key in ours for key in PARAMS}
    got, _ = run(optax.masked(make(name), mask), PARAMS, STREAM)
    want, _ = run(make(name), part(PARAMS, ours), [part(g, ours) for g in STREAM])
    for updates, bare, grads in zip(got, want, STREAM, strict=True):
        assert_close(part(updates, ours), bare)
        rest = PARAMS.keys() - ours
        assert_equal(part(updates, rest), part(grads, rest))


def test_each_part_has_its_own_method():
    ours = {"one": ("wide", "embed"), "two": ("square",)}
    labels = {
        key: next((n for n in ours if key in ours[n]), "frozen") for key in PARAMS
    }
    parts = {"one": make("muoneq"), "two": make("aro")}
    multi = {**parts, "frozen": optax.set_to_zero()}
    tx = optax.multi_transform(multi, labels)  # The old name of `partition`.
    got, state = run(tx, PARAMS, STREAM)
    for which, names in ours.items():
        want, _ = run(
            parts[which], part(PARAMS, names), [part(g, names) for g in STREAM]
        )
        for updates, bare in zip(got, want, strict=True):
            assert_close(part(updates, names), bare)
    assert all(not updates["temperature"].any() for updates in got)
    assert not jax.tree.leaves(state.inner_states["frozen"])


@recipes
def test_a_gradient_that_is_not_finite_changes_nothing(name):
    tx = optax.apply_if_finite(make(name), 3)
    broken = jax.tree.map(lambda x: x * jnp.nan, STREAM[0])
    got, state = run(tx, PARAMS, [STREAM[0], broken, STREAM[1]])
    want, bare = run(make(name), PARAMS, STREAM)
    assert_close([got[0], got[2]], want)
    assert_close(state.inner_state, bare)
    assert not any(x.any() for x in jax.tree.leaves(got[1]))
    assert int(state.total_notfinite) == 1


@recipes
def test_schedule_free_averages_the_iterates_of_the_recipe(name):
    """At a constant rate x is the mean of the z, and y lies between x and z."""
    b1, steps, base = 0.9, 4, make(name)
    tx = optax.contrib.schedule_free(base, RATE, b1=b1)
    y, state = PARAMS, tx.init(PARAMS)
    z, z_state, iterates = PARAMS, base.init(PARAMS), []
    update, bare = jax.jit(tx.update), jax.jit(base.update)
    for _ in range(steps):
        grads = jax.grad(loss)(y)
        step, z_state = bare(grads, z_state, y)
        z = optax.apply_updates(z, step)
        iterates.append(z)
        updates, state = update(grads, state, y)
        y = optax.apply_updates(y, updates)
    mean = jax.tree.map(lambda *x: sum(x) / steps, *iterates)
    got = optax.contrib.schedule_free_eval_params(state, y)
    assert_close(got, mean, rtol=1e-4, atol=1e-5)
    between = jax.tree.map(lambda x, z: b1 * x + (1 - b1) * z, mean, z)
    assert_close(y, between, rtol=1e-4, atol=1e-5)


@recipes
def test_mechanize_finds_a_rate_and_leaves_the_state_alone(name):
    base = make(name)
    tx = optax.contrib.mechanize(base)

    def body(carry, _):
        params, state, bare = carry
        grads = jax.grad(loss)(params)
        _, bare = base.update(grads, bare, params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state, bare), None

    start = (PARAMS, tx.init(PARAMS), base.init(PARAMS))
    params, state, bare = jax.jit(
        lambda carry: jax.lax.scan(body, carry, length=200)[0]
    )(start)
    assert_close(state.base_optimizer_state, bare)
    assert loss(params) < 0.1 * loss(PARAMS)


@recipes
def test_vmap_over_rates_and_seeds(name):
    """A sweep in one program: every lane is the run of its own."""
    rates = jnp.asarray([0.003, 0.01, 0.03])
    starts = [tree(seed, shapes=SHAPES) for seed in (0, 7, 8)]
    stack = lambda *x: jnp.stack(x)

    def final(rate, params):
        tx = getattr(om, name)(rate, **RECIPES[name])

        def body(carry, grads):
            params, state = carry
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        start = (params, tx.init(params))
        return jax.lax.scan(body, start, jax.tree.map(stack, *STREAM))[0][0]

    lanes = jax.jit(jax.vmap(final))(rates, jax.tree.map(stack, *starts))
    alone = jax.jit(final)
    want = jax.tree.map(stack, *map(alone, rates, starts))
    assert_close(lanes, want, rtol=1e-4, atol=1e-5)
    moved = jax.tree.map(lambda x, *y: x - stack(*y), lanes, *starts)
    sizes = [float(jnp.abs(x).mean()) for x in moved["wide"]["kernel"]]
    np.testing.assert_allclose(np.divide(sizes, sizes[0]), [1, 10 / 3, 10], rtol=0.3)
