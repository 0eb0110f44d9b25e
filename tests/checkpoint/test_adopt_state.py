"""`adopt_state`: in every wrapping of either optimizer, and what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES
from flax import nnx
from flax.nnx.training.optimizer import to_opt_state
from optax.contrib import MuonState

import optax_matrix as om
from optax_matrix import recipes
from optax_matrix._paths import named_leaves
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.matrices.rules import by_path
from optax_matrix.stacks.layout import group_matrices
from optax_matrix.transforms.first_moments._momentum import MomentumState
from optax_matrix.tree._asked_sides import without_sides
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
    converted = om.adopt_state(state, ours, middle)
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
    with pytest.raises(ValueError, match="treat the same leaves as matrices"):
        om.adopt_state(state, recipes.muon(0.1), params)


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
            return jnp.asarray(rng.uniform(0.1, 1, x.shape), x.dtype)
        return jnp.full_like(x, COUNT) if x.dtype == jnp.int32 else x

    return jax.tree.map(fill, state)


def nodes(kind, state):
    is_one = lambda x: isinstance(x, kind)
    return [x for x in jax.tree.leaves(state, is_leaf=is_one) if is_one(x)]


def arrays(tree):
    return {path: np.asarray(x, np.float32) for path, x in named_leaves(tree).items()}


def layout_of(params, rule=None):
    """The stacks of a method that does not ask for residual sides."""
    views = without_sides(views_of(decide(params, rule)))
    return group_matrices(named_leaves(params), views)


def assert_continues(state, tx, params, source, rtol=1e-6):
    fresh = tx.init(params)
    kinds = lambda t: jax.tree.map(lambda x: (x.shape, x.dtype), t)
    assert kinds(state) == kinds(fresh)
    (momenta,), (given,) = nodes(MomentumState, state), nodes(MuonState, source)
    (ours,), (adam,) = (nodes(optax.ScaleByAdamState, s) for s in (state, source))
    momentum = arrays(layout_of(params).unstack(momenta.mu))
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
    state = om.adopt_state(source, tx, TREE)
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
    assert_continues(om.adopt_state(source, tx, TREE), tx, TREE, source, rtol)


@pytest.mark.broad
def test_schedule_of_an_injected_rate_goes_on():
    tx = om.inject_hyperparams(om.muon)(RATE)
    state: Any = om.adopt_state(used(theirs(), TREE), tx, TREE)
    _, state = jax.jit(tx.update)(TREE, state, TREE)
    np.testing.assert_allclose(state.hyperparams["learning_rate"], RATE(COUNT))


def test_accumulation_is_converted_between_steps_only():
    source = optax.MultiSteps(theirs(), 3).init(TREE)
    tx = om.muon(RATE)
    assert_continues(om.adopt_state(source, tx, TREE), tx, TREE, source)
    with pytest.raises(ValueError, match="middle of an accumulation, got mini_step 2"):
        om.adopt_state(source._replace(mini_step=jnp.int32(2)), tx, TREE)


@pytest.mark.filterwarnings("ignore:No parameter is in a matrix")
@pytest.mark.parametrize("kind", ["only matrices", "no matrices"])
def test_trees_of_one_side(kind):
    params = {"w": jnp.ones((4, 6) if kind == "only matrices" else 6)}
    source, tx = used(theirs(), params), om.muon(RATE)
    state = om.adopt_state(source, tx, params)
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
        state = om.adopt_state(given, tx, params)
        assert_continues(state, tx, params, source)
    new = nnx.Optimizer(model, tx, wrt=nnx.Param)
    new.opt_state = nnx.data(to_opt_state(state))
    new.update(model, nnx.state(model, nnx.Param))


def test_with_dimension_numbers():
    rule = by_path(exclude="down")
    tx = om.muon(RATE, dimension_numbers=rule)
    source = used(optax.contrib.muon(0.1, muon_weight_dimension_numbers=rule), TREE)
    state = om.adopt_state(source, tx, TREE)
    (momenta,) = nodes(MomentumState, state)
    (held,) = nodes(OnMatricesState, state)
    assert set(momenta.mu) == set(held.manifest) == set(layout_of(TREE, rule).groups)


LACKS, NO_PLACE = "but lacks inner_state/", "no place for mu of down/kernel"


@pytest.mark.parametrize(
    ("recipe", "match"),
    [(om.normuon, LACKS), (om.adamuon, LACKS), (om.galore, LACKS), (om.swan, NO_PLACE)],
)
def test_more_or_less_than_a_momentum_is_refused(recipe, match):
    with pytest.raises(ValueError, match=match):
        om.adopt_state(used(theirs(), TREE), recipe(0.1), TREE)


@pytest.mark.parametrize("recipe", [om.adamuon, om.muon2])
def test_second_moments_of_something_else_are_not_taken(recipe):
    """Those of polar factors and of momenta have another size than Adam's."""
    adam = used(optax.adamw(0.1), TREE)
    with pytest.raises(ValueError, match=r"lacks inner_state/.*/down/kernel"):
        om.adopt_state(adam, recipe(0.1), TREE, unused="drop")
    state = om.adopt_state(adam, recipe(0.1), TREE, missing="init", unused="drop")
    (fresh,) = (
        v for k, v in om.to_portable(state, TREE).items() if _is_second_moment(k)
    )
    assert not np.any(fresh)


def _is_second_moment(key):
    return key.startswith("inner_state") and key.endswith(
        ("nu/up/kernel", "root/up/kernel")
    )


SOURCE = {"mu": {"up/kernel": np.ones((4, 6))}}
ONE = {"up": {"kernel": jnp.ones((4, 6))}}


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ({}, "`source` must hold"),
        (ONE, "`source` must hold"),
        ({"mu": {"up/kernel": np.ones((5, 6))}}, "'mu' of 'up/kernel' in the shape"),
        (SOURCE | {"other": SOURCE}, "one array 'mu' of 'up/kernel', got two"),
        (SOURCE | {"nu": SOURCE["mu"]}, "no place for nu of up/kernel"),
        (SOURCE | {"a": {"count": 3}, "b": {"count": 4}}, r"got counts \[3, 4\]"),
    ],
)
def test_mistakes(source, match):
    with pytest.raises(ValueError, match=match):
        om.adopt_state(source, om.muon(RATE), ONE)


def test_a_name_has_one_place():
    rows = {"rows": {"up/kernel": np.eye(6)}}
    with pytest.raises(ValueError, match=r"'rows' for .*rotation/rows and .*gram/rows"):
        om.adopt_state(SOURCE | rows, om.soap(0.1), ONE, count=3, missing="init")


def test_a_weight_does_not_start_afresh_beside_its_average():
    """The momentum would be divided by 1 - b1 instead of by about 1."""
    with pytest.raises(ValueError, match="lacks inner_state/momentum/weight/up/kernel"):
        om.adopt_state(SOURCE, om.soap(0.1), ONE, count=3, missing="init")
    given = SOURCE | {"weight": {"up/kernel": 1.0}}
    state: Any = om.adopt_state(given, om.soap(0.1), ONE, count=3, missing="init")
    assert [n.tolist() for n in state.inner_state.count.values()] == [[3]]


def test_what_starts_afresh_counts_from_zero():
    tx = om.muon(optax.constant_schedule(0.1))
    mu = {"mu": {k: v for k, v in arrays(TREE).items() if k.endswith("kernel")}}
    state = om.adopt_state(mu, tx, TREE, count=COUNT, missing="init")
    (adam,) = nodes(optax.ScaleByAdamState, state)
    schedules = nodes(optax.ScaleByScheduleState, state)
    assert int(adam.count) == 0
    assert {int(s.count) for s in schedules} == {COUNT}


CORE = {"muoneq", "soap", "galore"}


def filled(x):
    """An array of state with other values, which second moments could have, too."""
    if x.dtype.kind == "f":
        return jnp.asarray(np.random.default_rng(x.size).random(x.shape), x.dtype)
    return jnp.full_like(x, COUNT) if x.dtype == jnp.int32 else x


def held(state):
    """What a state holds of each parameter: ``{(place, path): array}``."""
    paths, found = set(named_leaves(TREE)), {}
    for key, array in om.to_portable(state, TREE).items():
        path = next((p for p in paths if key.endswith(f"/{p}")), None)
        place = key.removesuffix(f"/{path}")
        label = place.partition("/")[0] in ("manifest", "sides")
        if path and not label and not place.endswith("zero_gradients"):
            kind = np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else None
            found[place, path] = np.asarray(array, kind)
    for place, path in [at for at in found if at[0].endswith("/peak")]:
        place = place.removesuffix("/peak")
        peak, gram = (found.pop((f"{place}/{x}", path)) for x in ("peak", "normalized"))
        found[place, path] = peak**2 * gram
    for place, path in [at for at in found if at[0].endswith("root")]:
        root = found.pop((place, path))
        found[place.removesuffix("root") + "nu", path] = root**2
    return found


@pytest.mark.parametrize(
    "name",
    [n if n in CORE else pytest.param(n, marks=pytest.mark.slow) for n in RECIPES],
)
def test_all_state_of_every_recipe_has_a_name(name):
    tx = RECIPES[name](RATE)
    state = jax.tree.map(filled, tx.init(TREE))
    source = {}
    for (place, path), array in held(state).items():
        source.setdefault(place, {})[path] = array
    counts = [name for name in source if name.endswith("count")]
    for count in counts:
        del source[count]
    adopted = held(om.adopt_state(source, tx, TREE, count=COUNT))
    for at, array in held(state).items():
        np.testing.assert_allclose(adopted[at], array, rtol=1e-5, atol=1e-30)


@pytest.mark.broad
@pytest.mark.parametrize("places", ["source", "target", "both"])
def test_moments_in_eight_bits_on_either_side(places):
    """They are the numbers that they stand for, and no codes are taken for numbers."""
    eight = {"block_size": 8, "min_size": 1}
    source = used(optax.adam(0.1), TREE)
    packed = om.quantization.quantize_state(optax.adam(0.1), **eight)
    if places != "target":
        source = om.from_portable(om.to_portable(source, TREE), packed.init(TREE), TREE)
    other = optax.adam(0.1) if places == "source" else om.adamw_8bit(0.1, **eight)
    placement = None if places == "source" else om.quantized(**eight)
    tx = om.muon(0.1, placement=placement, other=other)
    state = om.adopt_state(source, tx, TREE, unused="drop")
    plain = om.muon(0.1, other=optax.adam(0.1))
    want = om.adopt_state(used(optax.adam(0.1), TREE), plain, TREE, unused="drop")
    got = om.from_portable(
        om.to_portable(state, TREE), plain.init(TREE), TREE, unused="drop"
    )
    for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mu": np.ones((4, 6), int)}, "`source` must hold real numbers for 'mu of up"),
        ({"mu": np.full((4, 6), "1")}, "`source` must hold real numbers for 'mu of up"),
        ({"nu": -np.ones(6, np.float32)}, "`source` must hold no negative numbers in"),
        ({"count": 3.7}, "`source` must hold whole numbers of updates, got 3.7"),
    ],
)
def test_another_kind_of_number_is_refused(wrong, message):
    params = {"up": TREE["up"]}
    moments = {
        "mu": {"up/kernel": np.ones((4, 6)), "up/bias": np.ones(6)},
        "nu": {"up/bias": np.ones(6)},
        "count": 3.0,
    }
    tx = om.muon(RATE, other=optax.adamw(RATE))
    om.adopt_state(moments, tx, params)
    for name, x in wrong.items():
        path = {"mu": "up/kernel", "nu": "up/bias"}.get(name)
        held = x if path is None else {**moments[name], path: x}
        with pytest.raises(ValueError, match=message):
            om.adopt_state({**moments, name: held}, tx, params)
