"""Every recipe in the modes of JAX that large code bases use.

Reverse-mode differentiation through updates, a user's own `shard_map`, strict
promotion, and the search for NaN.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES
from _tiers import DAILY
from _walks import walk
from jax.sharding import AxisType, PartitionSpec

recipes = pytest.mark.parametrize("name", RECIPES)
kinds = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in DAILY else pytest.mark.slow) for n in RECIPES],
)
# The only recipe whose state has integers per matrix.
promoted = pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in DAILY | {"poet"} else pytest.mark.slow)
        for n in RECIPES
    ],
)
SHAPES = {"a": {"kernel": (7, 4), "bias": (3,)}, "b": {"kernel": (3, 4, 6)}}


def draw(seed, shapes=SHAPES, dtype=np.float32):
    rng = np.random.default_rng(seed)
    normal = lambda shape: np.asarray(rng.standard_normal(shape), dtype)
    return jax.tree.map(normal, shapes, is_leaf=lambda x: isinstance(x, tuple))


def trained(tx, params, noises):
    """The parameters after a few steps on 0.15 p^2 plus noise."""
    state = tx.init(params)
    for noise in noises:
        grads = jax.tree.map(lambda p, n: 0.3 * p + n, params, noise)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params


# Leading rows of signs depend on one another with the gradients of seed 0: there the
# update jumps.
SEEDS = {"aro-sign": 4}
# The basis of a null space of three dimensions is arbitrary; what is normalized in it
# may jump.
NARROW = dict.fromkeys(("soap", "splus", "kl_shampoo"), (5, 4))


@kinds
@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_reverse_mode_through_updates(name):
    """As meta-gradients need it: against a difference, in float64."""
    shapes = {"a": {"kernel": NARROW.get(name, (7, 4)), "bias": (3,)}}
    start = 10 * SEEDS.get(name, 0)
    params, direction, *noises = (draw(start + i, shapes, np.float64) for i in range(4))
    tx = RECIPES[name](0.05)

    def loss(params):
        end = jax.tree.leaves(trained(tx, params, noises))
        return sum(jnp.sum(jnp.sin(x) * (1 + jnp.arange(x.shape[-1]))) for x in end)

    def moved(step):
        return jax.tree.map(lambda p, d: p + step * d, params, direction)

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    got = sum(map(jnp.vdot, *map(jax.tree.leaves, (grads, direction))))
    f, h = jax.jit(loss), 1e-6
    want = (f(moved(h)) - f(moved(-h))) / (2 * h)
    assert np.isfinite(value)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def by_scan(tx, params, start):
    def step(carry, _):
        params, state = carry
        updates, state = tx.update(params, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, tx.init(start)), None, length=2)[0][0]


def by_steps(tx, params, start):
    state = tx.init(start)
    for _ in range(2):
        updates, state = tx.update(params, state, params)
        params = optax.apply_updates(params, updates)
    return params


def sweep(tx, train, same_start=False):
    """A function of a pair of models that trains each on a device of its own."""
    mesh = jax.make_mesh((2,), ("sweep",), axis_types=(AxisType.Auto,))

    def one(params):
        params = jax.tree.map(lambda p: p[0], params)
        start = params
        if same_start:  # A state that does not vary between devices.
            start = jax.tree.map(lambda p: np.ones(p.shape, p.dtype), params)
        return jax.tree.map(lambda p: p[None], train(tx, params, start))

    spec = PartitionSpec("sweep")
    return one, jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec)


PAIR = jax.tree.map(lambda *x: jnp.stack(x), draw(0), draw(1))


@kinds
@pytest.mark.broad
def test_traces_inside_a_shard_map_with_its_checks(name):
    tx = RECIPES[name](0.01)
    for train, same in ((by_scan, False), (by_steps, False), (by_steps, True)):
        out = jax.eval_shape(sweep(tx, train, same)[1], PAIR)
        assert jax.tree.map(jnp.shape, out) == jax.tree.map(jnp.shape, PAIR)


@kinds
@pytest.mark.slow
def test_trains_inside_a_shard_map_as_outside(name):
    one, both = sweep(RECIPES[name](0.01), by_scan)
    got, alone = jax.jit(both)(PAIR), jax.jit(one)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    each = [alone(jax.tree.map(lambda p, i=i: p[i : i + 1], PAIR)) for i in range(2)]
    jax.tree.map(close, got, jax.tree.map(lambda *x: jnp.concatenate(x), *each))


@pytest.mark.broad
@walk("name", RECIPES)
def test_no_field_shadows_the_scale_of_reduce_on_plateau(name):
    """`optax.tree.get(state, "scale")` is an idiom of optax's documentation."""
    tx = optax.chain(RECIPES[name](0.01), optax.contrib.reduce_on_plateau())
    state = jax.eval_shape(tx.init, draw(0))
    assert optax.tree.get(state, "scale").shape == ()


def two_steps(make, params):
    return trained(make(), params, [params, params])


def fails(make, params, mode):
    """Whether two updates of an optimizer do not trace in a mode."""
    with mode():
        try:
            jax.eval_shape(functools.partial(two_steps, make), params)
        except ValueError:  # Also the base of TypePromotionError.
            return True
    return False


def corrected(moment, decay, count):
    """`optax.tree.bias_correction` without an implicit promotion."""
    count = jnp.asarray(count, jnp.float32)
    weight = 1 - jnp.asarray(decay, jnp.float32) ** count
    return jax.tree.map(lambda m: m / weight.astype(m.dtype), moment)


strict = functools.partial(jax.numpy_dtype_promotion, "strict")
one_rank = functools.partial(jax.numpy_rank_promotion, "raise")
schedule = optax.linear_schedule(0.1, 0.01, 10)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.broad if n == "muon" else pytest.mark.slow)
        for n in RECIPES
    ],
)
@pytest.mark.parametrize("mode", [strict, one_rank], ids=["dtypes", "ranks"])
def test_no_implicit_promotion(name, mode, monkeypatch):
    """Whatever rate and dtype there is: where adamw traces, so does every recipe.

    optax 0.2.8 itself fails with strict dtypes wherever it corrects a bias, as adamw
    does for the leaves that are not matrices. With that function repaired, nothing of
    adamw or of the recipe may fail.
    """
    params = draw(0)
    if fails(lambda: optax.adamw(0.1), params, mode):
        assert mode is strict
        monkeypatch.setattr(optax.tree, "bias_correction", corrected)
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    for rate, tree in ((0.1, params), (schedule, params), (0.1, half)):
        assert not fails(functools.partial(optax.adamw, rate), tree, mode)
        run = functools.partial(two_steps, functools.partial(RECIPES[name], rate))
        with mode():
            jax.eval_shape(run, tree)


GRADIENTS = {
    "zero": jax.tree.map(jnp.zeros_like, draw(0)),
    "ones": jax.tree.map(jnp.ones_like, draw(0)),
    "normal": draw(1),
}


@kinds
@pytest.mark.broad
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(jax.jit, id="jit"),
        pytest.param(contextlib.nullcontext, id="eager", marks=pytest.mark.slow),
    ],
)
def test_the_search_for_nan_finds_none(name, wrap):
    """Not in any intermediate value, as long as the gradients are finite."""
    if wrap is not jax.jit:
        wrap = lambda f: f
    tx, params = RECIPES[name](0.01), draw(0)
    with jax.debug_nans(True):
        state, update = tx.init(params), wrap(tx.update)
        for kind in ("zero", "ones", "normal", "zero"):
            _, state = update(GRADIENTS[kind], state, params)
