"""Weights for evaluation: by `average_weights`, `outer` and optax's schedule-free."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _meshes import KINDS, make_mesh
from _owned import assert_same_path, assert_specs, given, on_mesh, rollout
from _registry import RECIPES, tree
from flax import nnx
from jax.sharding import PartitionSpec as P

import optax_matrix as om

B1, DECAY, RATE = 0.9, 0.8, 0.02
FREE = lambda tx: optax.contrib.schedule_free(tx, RATE, b1=B1)
WRAPPERS = {
    "free": FREE,
    "average": lambda tx: om.average_weights(tx, DECAY),
    "outer": lambda tx: om.outer(tx, every=2, momentum=DECAY),
}
every = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
FINISHED = {"poet", "oft", "poet-full", "muonh"}  # Their updates are finished steps.


def some(names, core=("muon",)):
    """A core every day, the rest of the names in `make test-slow`."""
    mark = lambda n: n if n in core else pytest.param(n, marks=pytest.mark.slow)
    return pytest.mark.parametrize("name", [mark(n) for n in names])


def polar(g):
    u, _, vt = np.linalg.svd(g, full_matrices=False)
    return u @ vt


def warmup(count):
    return 0.1 * np.minimum(count, 3) / 3


METHODS = {
    # With the factor "out/in" of a kernel (4, 6), (in, out).
    "muon": (
        lambda rate: om.muon(rate, b1=0.0, polar=om.linalg.polar_svd),
        lambda g: polar(g) * np.sqrt(6 / 4),
    ),
    "sgd": (optax.sgd, lambda g: g),
}
methods = pytest.mark.parametrize("method", METHODS)


def problem(method):
    """A transformation, a step in NumPy, and gradients of w with noise of their own."""
    rng = np.random.default_rng(0)
    start, *noise = rng.standard_normal((9, 4, 6))
    make, direction = METHODS[method]
    rate = lambda count: jnp.asarray(0.1 * jnp.minimum(count, 3) / 3)
    return make(rate), rate, direction, start, noise


def run(tx, start, noise):
    """The trained and the averaged weights after every step."""
    params, state, path = {"w": jnp.asarray(start)}, None, []
    state, update = tx.init(params), jax.jit(tx.update)
    for n in noise:
        updates, state = update({"w": params["w"] + n}, state, params)
        params = optax.apply_updates(params, updates)
        path.append((params["w"], om.evaluation_params(state, params)["w"]))
    return path


@pytest.mark.usefixtures("x64")
@methods
def test_schedule_free_is_that_of_the_paper(method):
    """Algorithm 1 of Defazio et al., with the largest rate so far squared as weight.

    optax's schedule-free counts from one, its base from zero.
    """
    base, rate, direction, start, noise = problem(method)
    path = run(optax.contrib.schedule_free(base, rate, b1=B1), start, noise)
    x = z = start
    total = 0.0
    for t, n in enumerate(noise):
        y = (1 - B1) * z + B1 * x
        z = z - warmup(t) * direction(y + n)
        total += warmup(t + 1) ** 2
        x = x + warmup(t + 1) ** 2 / total * (z - x)
        np.testing.assert_allclose(path[t][1], x, rtol=1e-9, atol=1e-12)
        y = (1 - B1) * z + B1 * x
        np.testing.assert_allclose(path[t][0], y, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
@methods
def test_the_average_weighs_step_i_by_the_power_of_its_age(method):
    base, _, direction, start, noise = problem(method)
    path = run(om.average_weights(base, DECAY), start, noise)
    w, weights = start, []
    for t, n in enumerate(noise):
        w = w - warmup(t) * direction(w + n)
        weights.append(w)
        powers = DECAY ** np.arange(t, -1, -1)
        mean = np.tensordot(powers, weights, 1) / powers.sum()
        np.testing.assert_allclose(path[t][0], w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(path[t][1], mean, rtol=1e-9, atol=1e-12)


def train(tx, params, seeds, state=None):
    state, update = tx.init(params) if state is None else state, jax.jit(tx.update)
    for seed in seeds:
        updates, state = update(tree(seed), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def assert_close(got, want):
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    jax.tree.map(near, got, want)


@every
@some(RECIPES)
def test_every_recipe_is_averaged_and_restored(name, wrap):
    tx = wrap(RECIPES[name](RATE))
    if wrap is FREE and name in FINISHED:
        pytest.skip("refused, see below")
    params, state = train(tx, tree(0), (1, 2, 3))
    averages = om.evaluation_params(state, params)
    types = lambda x: jax.tree.map(jnp.result_type, x)
    assert types(averages) == types(params)
    assert jax.tree.map(jnp.shape, averages) == jax.tree.map(jnp.shape, params)
    for x, w in zip(*map(jax.tree.leaves, (averages, params)), strict=True):
        assert jnp.isfinite(x).all()
        assert w.ndim < 2 or (x != w).any()
    portable = om.to_portable(state, params)
    back = om.from_portable(portable, tx.init(tree(0)), params)
    got, want = (train(tx, params, (4, 5), s) for s in (back, state))
    assert_equal(got, want)


@every
def test_orbax_restores_it(wrap, tmp_path):
    tx = wrap(om.muon(RATE))
    params, state = train(tx, tree(0), (1, 2))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
    with ocp.StandardCheckpointer() as checkpointer:
        back = checkpointer.restore(tmp_path / "state", tx.init(tree(0)))
    om.check_restored(back)
    got, want = (train(tx, params, (3,), s) for s in (back, state))
    assert_equal(got, want)


SHAPES = {"both": (8, 4), "bias": (8,), "layers": (4, 6, 4), "embedding": (8, 4)}
SPECS = {
    "both": P("fsdp", "tp"),
    "bias": P("tp"),
    "layers": P("fsdp", "tp", None),
    "embedding": P("fsdp", "tp"),
}


@pytest.mark.daily("explicit-free", "auto-average")
@every
@pytest.mark.parametrize("kind", KINDS)
@some(RECIPES)
def test_owners_get_the_averages_of_one_device(name, wrap, kind, cpus):
    if wrap is FREE and name in FINISHED:
        pytest.skip("refused, see below")
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    start, noise = (tree(seed, shapes=SHAPES) for seed in (0, 1))
    owners = om.owners(("fsdp", "tp"), param_specs=given(mesh, SPECS))

    def averages(placement, *trees):
        tx = wrap(RECIPES[name](RATE, placement=placement))
        path, state, _ = rollout(tx, *trees)
        return om.evaluation_params(state, path[-1])

    want = averages(None, start, noise)
    got = averages(owners, *(on_mesh(t, SPECS, mesh) for t in (start, noise)))
    assert_same_path([got], [want], rtol=1e-4, atol=1e-4)
    assert_specs(got, SPECS, mesh)


@pytest.mark.daily("chain", "injected", "remainders-average", "multi_steps-free")
@every
@pytest.mark.parametrize(
    "outside",
    [
        lambda tx: optax.chain(optax.clip_by_global_norm(1e3), tx),
        lambda tx: optax.MultiSteps(tx, 1),
        lambda tx: optax.apply_if_finite(tx, 3),
        lambda tx: om.inject_hyperparams(lambda s: optax.chain(tx, optax.scale(s)))(
            1.0
        ),
        om.weights.store_remainders,
    ],
    ids=["chain", "multi_steps", "if_finite", "injected", "remainders"],
)
def test_one_call_finds_it_at_any_depth(wrap, outside):
    tx = wrap(om.muon(RATE))
    want = om.evaluation_params(*train(tx, tree(0), (1, 2))[::-1])
    got = om.evaluation_params(*train(outside(tx), tree(0), (1, 2))[::-1])
    assert_close(got, want)


@pytest.mark.filterwarnings("ignore:These parameters are read without")
@every
def test_leaves_without_an_average_stay(wrap):
    masks = {"kernel": wrap(om.muon(RATE)), "bias": optax.sgd(RATE)}
    label = lambda p: jax.tree.map_with_path(
        lambda k, _: "bias" if "bias" in str(k) else "kernel", p
    )
    params, state = train(optax.partition(masks, label), tree(0), (1, 2, 3))
    got = om.evaluation_params(state, params)
    assert_equal(got["square"]["bias"], params["square"]["bias"])
    want = om.evaluation_params(*train(wrap(om.muon(RATE)), tree(0), (1, 2, 3))[::-1])
    if wrap is not FREE:  # Schedule-free of all leaves has gradients elsewhere.
        assert_close(got["tall"], want["tall"])
    assert (got["tall"]["kernel"] != params["tall"]["kernel"]).any()


@pytest.mark.daily("average")
@every
def test_nnx_models(wrap):
    model = nnx.Linear(4, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, wrap(om.muon(RATE)), wrt=nnx.Param)
    loss = lambda model: jnp.sum(model(jnp.ones((2, 4))) ** 2)
    tx, params = optimizer.tx, nnx.to_pure_dict(nnx.state(model, nnx.Param))
    state = tx.init(params)
    for _ in range(2):
        grads = nnx.grad(loss)(model)
        updates, state = tx.update(nnx.to_pure_dict(grads), state, params)
        params = optax.apply_updates(params, updates)
        optimizer.update(model, grads)
    averages = om.evaluation_params(optimizer.opt_state, nnx.state(model, nnx.Param))
    assert_close(nnx.to_pure_dict(averages), om.evaluation_params(state, params))
    nnx.update(model, averages)
    assert_close(model.kernel[...], averages["kernel"][...])


def test_averages_of_bfloat16_weights_are_float32():
    """Of a walk whose averages rounded to bfloat16 would stand still."""
    step = optax.stateless(lambda g, _: jax.tree.map(lambda x: x / 64, g))
    tx = om.weights.store_remainders(om.average_weights(step, 0.99))
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    state, grads = tx.init(params), {"w": jnp.ones(3, jnp.bfloat16)}
    for _ in range(100):
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    powers = 0.99 ** np.arange(99, -1, -1)
    want = powers @ (1 + np.arange(1, 101) / 64) / powers.sum()
    average = state.inner_state.average["w"]
    assert average.dtype == jnp.float32
    np.testing.assert_allclose(average, want, rtol=1e-5)
    got = om.evaluation_params(state, params)["w"]
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(got), want, rtol=2.0**-8)


@every
@pytest.mark.parametrize("jitted", [True, False])
def test_before_the_first_step_it_is_the_initialization(wrap, jitted):
    tx, params = wrap(om.muon(RATE)), jax.device_put(tree(0))
    state = (jax.jit(tx.init) if jitted else tx.init)(params)
    assert_close(om.evaluation_params(state, params), params)
    held = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)}
    assert not held & {x.unsafe_buffer_pointer() for x in jax.tree.leaves(params)}


def test_training_is_as_without_the_average():
    plain, _ = train(om.muon(RATE), tree(0), (1, 2, 3))
    got, _ = train(om.average_weights(om.muon(RATE)), tree(0), (1, 2, 3))
    assert_equal(got, plain)


@pytest.mark.daily(
    "make2-poet", "hyperball", "make3-poet", "store_remainders", "stochastic_rounding"
)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((RECIPES[n], n.removesuffix("-full")) for n in sorted(FINISHED)),
        (lambda r: om.weights.hyperball(om.muon(r), r), "hyperball"),
        (lambda r: om.weights.store_remainders(om.muon(r)), "store_remainders"),
        (lambda r: om.weights.stochastic_rounding(om.muon(r)), "stochastic_rounding"),
    ],
)
def test_schedule_free_around_finished_steps_is_refused(make, name):
    tx = FREE(make(RATE))
    state = tx.init(tree(0))
    with pytest.raises(ValueError, match=f"must not be around {name}, whose updates"):
        om.evaluation_params(state, tree(0))
    average = om.average_weights(make(RATE))  # Training is what it was.
    om.evaluation_params(average.init(tree(0)), tree(0))


def test_hyperball_refuses_schedule_free():
    tx = om.weights.hyperball(FREE(om.muon(RATE)), RATE)
    with pytest.raises(ValueError, match="`inner` must not be optax"):
        tx.init(tree(0))


@every
def test_mistakes(wrap):
    params = tree(0)
    plain = om.muon(RATE).init(params)
    with pytest.raises(ValueError, match="`state` must have averages of the weights"):
        om.evaluation_params(plain, params)
    if wrap is not WRAPPERS["outer"]:  # Which refuses it at `init`.
        twice = wrap(om.average_weights(om.muon(RATE))).init(params)
        with pytest.raises(ValueError, match="must not have averages of averages"):
            om.evaluation_params(twice, params)
    state = wrap(om.muon(RATE)).init(params)
    del params["tall"]
    with pytest.raises(ValueError, match="which has 'tall/kernel'; pass the param"):
        om.evaluation_params(state, params)


def test_mistakes_of_the_average():
    tx = om.average_weights(om.muon(RATE))
    with pytest.raises(ValueError, match="because the weights are averaged"):
        tx.update(tree(1), tx.init(tree(0)))
    with pytest.raises(ValueError, match="`decay` must be in"):
        om.average_weights(om.muon(RATE), 1.0)
    with pytest.raises(ValueError, match="`inner` must be a gradient transformation"):
        om.average_weights(0.1)
