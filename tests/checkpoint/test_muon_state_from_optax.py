"""`muon` continues a run of `optax.contrib.muon`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.nnx.training.optimizer import to_opt_state
from optax.contrib import MuonState

import optax_matrix as om
from optax_matrix import recipes
from optax_matrix.matrices.paths import named_leaves
from optax_matrix.matrices.rules import by_path
from optax_matrix.stacks.layout import make_layout
from optax_matrix.transforms import MomentumState
from optax_matrix.tree.state import OnMatricesState

pytestmark = pytest.mark.broad

KERNELS = {"kernel": (6, 4), "bias": (4,)}
BEFORE, AFTER = 150, 50


@pytest.fixture(scope="module")
def runs():
    """optax for 200 steps, and ours from what optax had after 150."""
    rng = np.random.default_rng(0)
    params = {
        k: jnp.asarray(rng.standard_normal(s), "float32") for k, s in KERNELS.items()
    }
    noise = {
        k: rng.standard_normal((BEFORE + AFTER, *s)).astype("float32")
        for k, s in KERNELS.items()
    }
    rate = optax.cosine_decay_schedule(0.02, 200)
    theirs = optax.contrib.muon(rate, eps=1e-8, adam_b1=0.9, adam_b2=0.999)

    def scan(tx, params, state, noise):
        @jax.jit
        def run(params, state, noise):
            def body(carry, noise_t):
                params, state = carry
                grads = jax.tree.map(lambda p, n: 0.3 * p + n, params, noise_t)
                updates, state = tx.update(grads, state, params)
                params = optax.apply_updates(params, updates)
                return (params, state), params

            return jax.lax.scan(body, (params, state), noise)

        return run(params, state, noise)

    first = jax.tree.map(lambda n: n[:BEFORE], noise)
    rest = jax.tree.map(lambda n: n[BEFORE:], noise)
    (middle, state), _ = scan(theirs, params, theirs.init(params), first)
    _, their_path = scan(theirs, middle, state, rest)

    ours = recipes.muon(
        rate,
        other=optax.adamw(rate, 0.9, 0.999, weight_decay=0.0, nesterov=True),
    )
    converted = om.muon_state_from_optax(state, ours, middle)
    _, our_path = scan(ours, middle, converted, rest)
    _, fresh_path = scan(ours, middle, ours.init(middle), rest)
    return {
        "params": middle,
        "state": state,
        "converted": converted,
        "theirs": jax.tree.map(np.asarray, their_path),
        "ours": jax.tree.map(np.asarray, our_path),
        "fresh": jax.tree.map(np.asarray, fresh_path),
    }


@pytest.mark.broad
def test_converted_state_follows_optax(runs):
    # What is left of optax's bias correction is 0.95**150 = 5e-4 of a direction, and
    # less at every step; 50 steps of size 0.02 * 1 make at most 5e-4 of it.
    gap = np.abs(runs["ours"]["kernel"] - runs["theirs"]["kernel"]).max()
    assert gap < 5e-4
    np.testing.assert_allclose(runs["ours"]["bias"], runs["theirs"]["bias"], atol=1e-6)


@pytest.mark.broad
def test_a_fresh_state_does_not(runs):
    assert np.abs(runs["fresh"]["kernel"] - runs["theirs"]["kernel"]).max() > 0.02
    assert np.abs(runs["fresh"]["bias"] - runs["theirs"]["bias"]).max() > 1e-3


@pytest.mark.broad
def test_counts_are_taken_over(runs):
    counts = [c for _, c in optax.tree.get_all_with_path(runs["converted"], "count")]
    assert len(counts) == 3  # Adam and two schedules
    assert {int(c) for c in counts} == {BEFORE}


def test_other_leaves_must_agree():
    params = {"kernel": jnp.ones((4, 3)), "embedding": {"kernel": jnp.ones((5, 3))}}
    state = optax.contrib.muon(0.1).init(params)
    with pytest.raises(ValueError, match="same leaves as matrices"):
        om.muon_state_from_optax(state, recipes.muon(0.1), params)


COUNT = 7
TREE = {
    "up": {"kernel": jnp.ones((4, 6)), "bias": jnp.ones(6)},
    "down": {"kernel": jnp.ones((6, 4))},
    "layers": {"kernel": jnp.ones((2, 4, 6))},
}
# 3-D leaves are none of optax's matrices unless it is told.
RULE = by_path()
RATE = optax.linear_schedule(0.1, 0.0, 20)


def theirs(rate=RATE, **options):
    return optax.contrib.muon(
        rate, beta=0.9, muon_weight_dimension_numbers=RULE, **options
    )


def used(tx, params):
    return after_count_steps(tx.init(params))


def after_count_steps(state):
    """A state with every moment another number."""
    rng = np.random.default_rng(0)

    def fill(x):
        if x.ndim:
            return jnp.asarray(rng.standard_normal(x.shape), x.dtype)
        return jnp.full_like(x, COUNT) if x.dtype == jnp.int32 else x

    return jax.tree.map(fill, state)


def nodes(kind, state):
    is_one = lambda x: isinstance(x, kind)
    return [x for x in jax.tree.leaves(state, is_leaf=is_one) if is_one(x)]


def arrays(tree):
    return {path: np.asarray(x, np.float32) for path, x in named_leaves(tree).items()}


def assert_continues(state, tx, params, source, rtol=1e-6):
    fresh = tx.init(params)
    kinds = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
    assert kinds(state) == kinds(fresh)
    (momenta,), (given,) = nodes(MomentumState, state), nodes(MuonState, source)
    (ours,), (adam,) = (nodes(optax.ScaleByAdamState, s) for s in (state, source))
    momentum = arrays(make_layout(params).unstack(momenta.mu))
    wanted = arrays(given.mu)
    assert set(momentum) == set(wanted)
    for path, mu in wanted.items():
        np.testing.assert_allclose(momentum[path], mu, rtol=rtol)
    for name in ("mu", "nu"):
        moment, wanted = (arrays(getattr(s, name)) for s in (ours, adam))
        assert set(moment) == set(wanted)
        for path, value in wanted.items():
            np.testing.assert_allclose(moment[path], value, rtol=rtol)
    (manifest,), (same,) = (nodes(OnMatricesState, s) for s in (state, fresh))
    jax.tree.map(np.testing.assert_array_equal, manifest.manifest, same.manifest)


def convert(source, tx, params, **options):
    return om.muon_state_from_optax(source, tx, params, **options)


TARGETS = {
    "bare": lambda: om.muon(RATE),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), om.muon(RATE)),
    "injected": lambda: om.inject_hyperparams(om.muon)(RATE),
    "multisteps": lambda: optax.MultiSteps(om.muon(RATE), 3),
    "mu_dtype": lambda: om.muon(RATE, mu_dtype=jnp.bfloat16),
    "muoneq": lambda: om.muoneq(RATE),
}
SOURCES = {
    "bare": theirs,
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), theirs()),
    "injected": lambda: om.inject_hyperparams(optax.contrib.muon)(
        RATE, beta=0.9, muon_weight_dimension_numbers=RULE
    ),
    "mu_dtype": lambda: theirs(mu_dtype=jnp.bfloat16),
}
BFLOAT16 = 2.0**-8  # Half a unit in the last place, relative.


@pytest.mark.parametrize("name", TARGETS)
def test_every_wrapping_of_ours(name):
    tx, source = TARGETS[name](), used(theirs(), TREE)
    state = convert(source, tx, TREE)
    assert_continues(state, tx, TREE, source, BFLOAT16 if name == "mu_dtype" else 1e-6)
    counts = {
        keys: int(count)
        for keys, count in optax.tree.get_all_with_path(state, "count")
        + optax.tree.get_all_with_path(state, "gradient_step")
    }
    assert len(counts) >= (1 if name == "injected" else 3)
    assert set(counts.values()) == {COUNT}


@pytest.mark.parametrize("name", SOURCES)
def test_every_wrapping_of_theirs(name):
    source, tx = used(SOURCES[name](), TREE), om.muon(RATE)
    rtol = BFLOAT16 if name == "mu_dtype" else 1e-6
    assert_continues(convert(source, tx, TREE), tx, TREE, source, rtol)


@pytest.mark.broad
def test_schedule_of_an_injected_rate_goes_on():
    tx = om.inject_hyperparams(om.muon)(RATE)
    state = convert(used(theirs(), TREE), tx, TREE)
    _, state = tx.update(TREE, state, TREE)
    np.testing.assert_allclose(state.hyperparams["learning_rate"], RATE(COUNT))


def test_accumulation_is_converted_between_steps_only():
    source = optax.MultiSteps(theirs(), 3).init(TREE)
    tx = om.muon(RATE)
    assert_continues(convert(source, tx, TREE), tx, TREE, source)
    with pytest.raises(ValueError, match="middle of an accumulation, got mini_step 2"):
        convert(source._replace(mini_step=jnp.int32(2)), tx, TREE)


@pytest.mark.filterwarnings("ignore:No parameter is in a matrix")
@pytest.mark.parametrize("kind", ["only matrices", "no matrices"])
def test_trees_of_one_side(kind):
    params = {"w": jnp.ones((4, 6) if kind == "only matrices" else 6)}
    source, tx = used(theirs(), params), om.muon(RATE)
    state = convert(source, tx, params)
    assert_continues(state, tx, params, source)
    tx.update(params, state, params)


def test_variables_of_nnx():
    model = nnx.Linear(4, 6, rngs=nnx.Rngs(0))
    old = nnx.Optimizer(model, theirs(), wrt=nnx.Param)
    source = after_count_steps(old.opt_state)
    assert isinstance(nodes(MuonState, source)[0].count, nnx.Variable)
    tx, params = om.muon(RATE), nnx.state(model, nnx.Param)
    is_variable = lambda x: isinstance(x, nnx.Variable)
    value = lambda x: x.get_value() if is_variable(x) else x
    for given in (source, jax.tree.map(value, source, is_leaf=is_variable)):
        state = convert(given, tx, params)
        assert_continues(state, tx, params, source)
    new = nnx.Optimizer(model, tx, wrt=nnx.Param)
    new.opt_state = nnx.data(to_opt_state(state))
    new.update(model, nnx.state(model, nnx.Param))


def test_dimension_numbers_are_those_of_tx():
    rule = by_path(exclude="down")
    tx = om.muon(RATE, dimension_numbers=rule)
    source = used(optax.contrib.muon(0.1, muon_weight_dimension_numbers=rule), TREE)
    with pytest.raises(ValueError, match="`dimension_numbers` must be those of `tx`"):
        convert(source, tx, TREE)
    state = convert(source, tx, TREE, dimension_numbers=rule)
    (momenta,) = nodes(MomentumState, state)
    (held,) = nodes(OnMatricesState, state)
    assert set(momenta.mu) == set(held.manifest) == set(make_layout(TREE, rule).groups)


@pytest.mark.parametrize("recipe", [om.normuon, om.adamuon, om.swan])
def test_more_or_less_than_a_momentum_is_refused(recipe):
    with pytest.raises(ValueError, match="`tx` must keep one momentum per matrix"):
        convert(used(theirs(), TREE), recipe(0.1), TREE)


def test_another_state_is_refused():
    adam = optax.adam(0.1).init(TREE)
    with pytest.raises(ValueError, match="one MuonState, got 0"):
        om.muon_state_from_optax(adam, recipes.muon(0.1), TREE)
