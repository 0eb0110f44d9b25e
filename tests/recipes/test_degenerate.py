"""Gradients that break naive code, and arguments that make no sense."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES, TABLE
from _tiers import KINDS
from _walks import walk
from optax.contrib import MuonDimensionNumbers

import optax_matrix as om
from optax_matrix import recipes
from optax_matrix.linalg import polar_svd

pytestmark = pytest.mark.broad

SCALINGS = {
    name: getattr(recipes, name)
    for name in recipes.__all__
    if name.startswith("scale_by_")
}
NUMBERS = {"stack": MuonDimensionNumbers(-2, -1), "row": MuonDimensionNumbers(-2, -1)}


def hard_gradients():
    """Six matrices of the stack are hard in six ways; the last one is normal."""
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((7, 4, 6)).astype(np.float32)
    stack[0] = 0
    stack[1] = np.outer(stack[1, :, 0], stack[1, 0])
    stack[2] *= np.float32(1e-20)
    stack[3] *= np.float32(1e20)
    stack[4, 1] = 0
    stack[5] = np.eye(4, 6)
    row = rng.standard_normal((5, 1)).astype(np.float32)  # one output
    return {"stack": stack, "row": row}


RARE = {"eigen_adam", "normuon"}
DAY_TO_DAY = {f"scale_by_{name}" for name in KINDS - RARE}


@pytest.fixture(
    scope="module",
    params=[
        n if n in DAY_TO_DAY else pytest.param(n, marks=pytest.mark.slow)
        for n in SCALINGS
    ],
)
def trajectory(request):
    tx = SCALINGS[request.param](dimension_numbers=NUMBERS)
    rng = np.random.default_rng(1)
    hard = hard_gradients()
    normal = jax.tree.map(
        lambda g: rng.standard_normal((3, *g.shape)).astype(np.float32), hard
    )
    # normal, hard, normal, normal
    grads = jax.tree.map(
        lambda n, g: np.concatenate([n[:1], g[None], n[1:]]), normal, hard
    )

    @jax.jit
    def scan(grads):
        def body(state, g):
            updates, state = tx.update(g, state)
            return state, (updates, state)

        start = tx.init(jax.tree.map(lambda g: jnp.zeros_like(g[0]), grads))
        return jax.lax.scan(body, start, grads)[1]

    return jax.tree.map(np.asarray, scan(grads))


@pytest.mark.slow
def test_updates_are_finite(trajectory):
    updates, _ = trajectory
    assert all(np.isfinite(u).all() for u in jax.tree.leaves(updates))


@pytest.mark.broad
def test_state_is_finite(trajectory):
    _, state = trajectory
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.broad
def test_state_is_live(trajectory):
    # The normal gradients after the hard one still give an update, to every matrix.
    updates, _ = trajectory
    for u in jax.tree.leaves(updates):
        assert (np.abs(u[2:]).max(axis=(-2, -1)) > 0).all()


@pytest.mark.slow
def test_a_zero_first_gradient_gives_zero():
    for name in ("scale_by_muoneq", "scale_by_adamuon", "scale_by_normuon"):
        tx = SCALINGS[name]()
        zero = {"kernel": jnp.zeros((3, 4))}
        updates, _ = tx.update(zero, tx.init(zero))
        np.testing.assert_array_equal(updates["kernel"], 0)


SCHEDULE = optax.linear_schedule(0.9, 0.5, 10)
WRONG = [
    (recipes.muon, {"b1": 1.0}, r"`b1` must be in \[0, 1\), got 1.0"),
    (recipes.muon, {"scaling": "fan"}, "`scaling` must be one of 'out/in'"),
    (recipes.muon, {"polar": "svd"}, "`polar` must be a function"),
    (recipes.muon, {"weight_decay": -0.1}, "`weight_decay` must not be negative"),
    (recipes.muon, {"other": 1e-3}, "`other` must be a gradient transformation"),
    (recipes.muoneq, {"mode": "left"}, "`mode` must be one of 'row', 'col'"),
    (recipes.muoneq, {"eps": -1.0}, "`eps` must not be negative"),
    (recipes.muon_plus, {"mode": "none"}, "`mode` must be one of"),
    (recipes.adamuon, {"variant": "new"}, "`variant` must be one of 'sign'"),
    (recipes.adamuon, {"b2": 1.5}, "`b2` must be in"),
    (recipes.normuon, {"scaling": "norm"}, "`scaling` must be one of 'rms'"),
    (recipes.swan, {"polar": None}, "`polar` must be a function"),
    (recipes.sinkgd, {"rounds": 0}, "`rounds` must be a positive int, got 0"),
    (recipes.sinkgd, {"scheme": "both"}, "`scheme` must be one of"),
    (recipes.racs, {"b1": -0.1}, "`b1` must be in"),
    (recipes.racs, {"limiter": 0.5}, "`limiter` must be at least 1, got 0.5"),
    (recipes.racs, {"max_rms": 0.5}, "`max_rms` must be at least 1, got 0.5"),
    (
        recipes.swan,
        {"scaling": "rms"},
        "`scaling` must be .*'norm', .*; got 'rms'",
    ),
    (recipes.racs, {"rounds": 2.0}, "`rounds` must be a positive int"),
    (recipes.mars_adamw, {"gamma": -1.0}, "`gamma` must not be negative"),
    (recipes.mars_adamw, {"max_norm": 0.0}, "`max_norm` must be positive"),
    (recipes.racs, {"max_shrink": 0.9}, "`max_shrink` must be at least 1, got 0.9"),
    # What is no number.
    (
        recipes.muon,
        {"b1": None},
        r"`b1` must be a number and must be in \[0, 1\)",
    ),
    (recipes.muoneq, {"b1": "0.9"}, "`b1` must be a number .*got '0.9'; pass a"),
    (recipes.muoneq, {"eps": [1e-8]}, r"`eps` must be a number .*got \[1e-08\]"),
    (recipes.normuon, {"b2": True}, "`b2` must be a number .*got True"),
    (recipes.sinkgd, {"scaling": np.ones(2)}, "`scaling` must be a number"),
    (recipes.sinkgd, {"rounds": None}, "`rounds` must be a positive int, got None"),
    (
        recipes.muon,
        {"weight_decay": "0.1"},
        "`weight_decay` must be a number and must",
    ),
    (recipes.swan, {"weight_decay": None}, "`weight_decay` must be a number or a"),
    # Concrete scalars of NumPy and JAX are numbers.
    (recipes.adamuon, {"b1": np.float32(1.0)}, "`b1` must be in"),
    (recipes.racs, {"scale": jnp.float32(-1.0)}, "`scale` must be positive"),
    (recipes.muoneq, {"eps": float("nan")}, "`eps` must not be negative, got nan"),
    (recipes.mars_adamw, {"max_norm": jnp.nan}, "`max_norm` must be positive, got nan"),
    # Schedules of what takes none.
    (recipes.muon, {"b1": SCHEDULE}, "`b1` must be a number, .*om.inject_hyperparams"),
    (recipes.racs, {"scale": SCHEDULE}, "`scale` must .*om.inject_hyperparams"),
    (recipes.mars_adamw, {"gamma": SCHEDULE}, "`gamma` must .*om.inject_hyperparams"),
    # Other kinds of argument.
    (recipes.muon, {"scaling": ["max"]}, r"`scaling` must be one of .*got \['max'\]"),
    (recipes.muoneq, {"mode": {}}, "`mode` must be one of .*got {}"),
    (recipes.muon, {"mu_dtype": jnp.int32}, "`mu_dtype` must be a floating dtype"),
    (recipes.swan, {"mu_dtype": "bf16"}, "`mu_dtype` must .*'bf16'; pass jnp.bfloat16"),
    (recipes.muon, {"other_learning_rate": -1.0}, "`other_learning_rate` must not be"),
    (recipes.racs, {"other_learning_rate": "1"}, "`other_learning_rate` must be a"),
]
WRONG_RATES = [
    (None, "`learning_rate` must be a number or a schedule, got None; pass 0"),
    ("0.1", "`learning_rate` must be a number and .*, or a schedule, got '0.1'"),
    ([0.1], "`learning_rate` must be a number and must not be negative"),
    (-0.1, "`learning_rate` must not be negative, got -0.1"),
    (float("nan"), "`learning_rate` must not be negative, got nan"),
]


@walk(("recipe", "arguments", "message"), WRONG)
def test_wrong_arguments_are_named_in_the_factory(recipe, arguments, message):
    with pytest.raises(ValueError, match=message):
        recipe(1e-3, **arguments)


@pytest.mark.parametrize("name", ["other_learning_rate", "other_weight_decay"])
@walk("recipe", TABLE)
def test_numbers_of_adamw_are_refused_beside_another_optimizer(recipe, name):
    other, message = optax.sgd(0.1), f"`{name}` must be None beside `other`, .* got 0.0"
    with pytest.raises(ValueError, match=message):
        TABLE[recipe](1e-3, other=other, **{name: 0.0})


TREES = TABLE | {"aro-full": functools.partial(om.aro, full_model=True)}


@pytest.mark.daily("muoneq", "scion", "muonh", "aro-full")
@pytest.mark.parametrize("name", TREES)
def test_other_leaves_have_their_own_weight_decay(name):
    """Also where the optimizer of other leaves is the recipe's own."""
    ones = np.ones(4, np.float32)
    params = {"kernel": np.eye(4, 6, dtype=np.float32), "bias": 10 * ones}
    bias = []
    for decay in (0.0, 5.0):
        tx = TREES[name](
            1.0,
            weight_decay=0.1,
            weight_decay_mask=True,
            other_weight_decay=decay,
            other_learning_rate=0.01,
        )
        first = jax.jit(lambda p, tx=tx: tx.update(p, tx.init(p), p)[0])
        updates = first(params)
        bias.append(float(updates["bias"][0]))
    assert bias[0] - bias[1] == pytest.approx(0.5, rel=1e-3)


def _flags():
    """Every recipe with every argument that is a bool."""
    for name in recipes.__all__:
        recipe = getattr(recipes, name)
        if callable(recipe) and not inspect.isclass(recipe):
            for flag, parameter in inspect.signature(recipe).parameters.items():
                if parameter.annotation in (bool, "bool"):
                    yield pytest.param(recipe, flag, id=f"{name}-{flag}")


@walk(("recipe", "flag"), list(_flags()))
def test_flags_are_true_or_false(recipe, flag):
    rate = {"learning_rate": 1e-3} if "scale_by" not in recipe.__name__ else {}
    with pytest.raises(ValueError, match=f"`{flag}` must be True or False, got 'no'"):
        recipe(**rate, **{flag: "no"})


@pytest.mark.parametrize(("rate", "message"), WRONG_RATES)
@pytest.mark.parametrize("recipe", [recipes.muon, recipes.swan, recipes.racs])
def test_wrong_learning_rates_are_named(recipe, rate, message):
    with pytest.raises(ValueError, match=message):
        recipe(rate)


def test_scalars_of_numpy_and_jax_and_zero_rates_are_numbers():
    params = {"kernel": jnp.eye(3, 4), "bias": jnp.ones(4)}
    for kind in (np.float64, np.float32, jnp.float32):
        tx = recipes.muoneq(kind(0.1), b1=kind(0.9), weight_decay=kind(0.0))
        updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
        assert all(jax.tree.leaves(jax.tree.map(jnp.any, updates)))
    recipes.racs(0, scale=1, max_shrink=None)


def test_numbers_may_be_traced():
    params = {"kernel": jnp.eye(3, 4)}

    @jax.jit
    def first_update(learning_rate, b1, weight_decay):
        tx = recipes.muon(learning_rate, b1=b1, weight_decay=weight_decay)
        return tx.update(params, tx.init(params), params)[0]

    tx = recipes.muon(0.1, b1=0.9, weight_decay=0.2)
    expected, _ = jax.jit(tx.update)(params, tx.init(params), params)
    np.testing.assert_allclose(
        first_update(0.1, 0.9, 0.2)["kernel"], expected["kernel"], rtol=1e-6
    )


@pytest.mark.parametrize("scale", [0.05, 0.02, 1.0])
def test_racs_takes_adams_rate_for_the_other_leaves(scale):
    """The paper's Adam has 1e-3; the scale of RACS, 0.02 for 1.3B, is not Adam's."""
    params = {"bias": jnp.ones(3)}
    for rate in (0.02, optax.constant_schedule(0.02)):
        tx = recipes.racs(rate, scale=scale)
        updates, _ = tx.update(params, tx.init(params), params)
        np.testing.assert_allclose(updates["bias"], -1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    ("scaling", "given", "expected"),
    [
        ("out/in", None, 3e-4),  # Keller Jordan's two rates
        ("none", None, 3e-4),
        ("max", None, 0.02),
        ("out/in", 0.1, 0.1),
    ],
)
def test_muons_rate_for_the_other_leaves_goes_with_the_scaling(
    scaling, given, expected
):
    params = {"bias": jnp.ones(3)}
    scheduled = given if given is None else optax.constant_schedule(given)
    for rate, other in ((0.02, given), (optax.constant_schedule(0.02), scheduled)):
        tx = recipes.muon(
            rate, scaling=scaling, other_learning_rate=other, weight_decay=0.0
        )
        updates, _ = tx.update(params, tx.init(params), params)
        np.testing.assert_allclose(updates["bias"], -expected, rtol=1e-5)


# As `recipes` says; all others have the learning rate of the matrices.
OTHER_RATES = {
    **{"scion": 50.0, "muonh": 3 / 13},
    **{"muon": 0.015, "racs": 0.05, "racs-corrected": 0.05, "splus": 0.001},
    **dict.fromkeys(("alice", "alice-carry", "alice_0"), 0.05),
    **{"poet": 5 * 4 / 256, "poet-full": 10 * 0.5, "oft": 5 * 4 / 256},
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_rate_of_the_other_leaves(name):
    params = {"bias": jnp.ones(3)}
    tx = RECIPES[name](0.02, weight_decay=0.0)
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params)
    want = -0.02 * OTHER_RATES.get(name, 1.0)
    np.testing.assert_allclose(updates["bias"], want, rtol=1e-4)


@pytest.mark.parametrize("name", ["muoneq", "racs", "mars_adamw"])
def test_bfloat16_stays_bfloat16_under_injected_hyperparameters(name):
    params = {"kernel": jnp.eye(4, 3), "bias": jnp.ones(3)}
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    tx = om.inject_hyperparams(getattr(recipes, name))(schedule, weight_decay=0.1)
    state = tx.init(params)
    updates, new_state = jax.jit(tx.update)(params, state, params)
    kinds = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert kinds(updates) == kinds(params)
    assert kinds(new_state) == kinds(state)
    assert all(bool(jnp.isfinite(u).all()) for u in jax.tree.leaves(updates))


def test_kernels_stay_static_under_injected_hyperparameters():
    params = {"kernel": jnp.eye(4, 3)}
    tx = om.inject_hyperparams(recipes.muon)(0.1, polar=polar_svd)
    state = tx.init(params)
    assert set(state.hyperparams) == {"learning_rate", "b1"}
    updates, _ = jax.jit(tx.update)(params, state, params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * np.eye(4, 3), atol=1e-6)


@pytest.mark.parametrize(
    ("keywords", "runs"),
    [
        ({"learning_rate": optax.linear_schedule(0.1, 0.0, 10)}, 0),
        ({"weight_decay": optax.linear_schedule(0.1, 0.0, 10)}, 0),
        ({"weight_decay_mask": lambda _: True}, 0),
        ({"other": optax.adamw(1e-3)}, 0),
        ({"polar": lambda x: x}, 1),
    ],
)
def test_only_code_inside_the_chain_is_probed(keywords, runs, monkeypatch):
    calls = []
    record = lambda *args: calls.append(args)
    monkeypatch.setattr("optax_matrix.tree._wrapper.refuse_coupling", record)
    recipes.muon(**{"learning_rate": 0.1, **keywords}).init({"kernel": jnp.eye(4, 3)})
    assert len(calls) == runs
