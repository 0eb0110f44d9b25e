"""Hyperparameters as state: numbers in float32, everything else as it is."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones

import optax_matrix as om

PARAMS = {"kernel": ones(3, 4), "bias": ones(4)}


def test_ints_given_for_numbers_become_float32():
    tx = om.inject_hyperparams(om.muoneq)(1, weight_decay=0)
    hyperparams = tx.init(PARAMS).hyperparams
    for name in ("learning_rate", "weight_decay", "b1"):
        assert hyperparams[name].dtype == jnp.float32


def test_static_arguments_stay_what_they_are():
    tx = om.inject_hyperparams(om.racs)(0.02, rounds=3, dimension_numbers=None)
    assert "rounds" not in tx.init(PARAMS).hyperparams
    tx = om.inject_hyperparams(om.muoneq)(0.02, mode="col", polar=om.linalg.polar_svd)
    assert not {"mode", "polar"} & set(tx.init(PARAMS).hyperparams)


@pytest.mark.broad
def test_kernels_of_blocks_are_no_schedules():
    tx = om.inject_hyperparams(om.orthogonalize)(om.linalg.polar_svd)
    stacks = {"w": 3 * jnp.eye(2)[None]}
    np.testing.assert_allclose(
        tx.update(stacks, tx.init(stacks))[0]["w"][0], np.eye(2, dtype=np.float32)
    )


def test_a_changed_hyperparameter_acts_without_recompilation():
    tx = om.inject_hyperparams(om.muoneq)(0.5)
    update, state = jax.jit(tx.update), tx.init(PARAMS)
    first, state = update(PARAMS, state, PARAMS)
    fresh = tx.init(PARAMS)
    fresh.hyperparams["learning_rate"] = jnp.float32(0.25)
    second, _ = update(PARAMS, fresh, PARAMS)
    assert update._cache_size() == 1
    np.testing.assert_allclose(first["kernel"], 2 * second["kernel"], rtol=1e-5)


@pytest.mark.broad
def test_schedules_of_any_number_are_followed():
    schedule = lambda count: 0.5 / (1 + count)
    tx = om.inject_hyperparams(om.muoneq)(
        schedule, weight_decay=0.0, other_learning_rate=schedule
    )
    state = tx.init(PARAMS)
    first, state = tx.update(PARAMS, state, PARAMS)
    second, _ = tx.update(PARAMS, state, PARAMS)
    np.testing.assert_allclose(first["kernel"], 2 * second["kernel"], rtol=1e-4)


def test_factories_of_optax_keep_their_counts():
    tx = om.inject_hyperparams(optax.adamw)(1, b1=0.9)
    assert tx.init(PARAMS).hyperparams["learning_rate"].dtype == jnp.float32


def test_signature_is_the_factorys():
    injected = om.inject_hyperparams(om.muoneq)
    assert inspect.signature(injected) == inspect.signature(om.muoneq)


def test_unknown_static_argument_is_named():
    with pytest.raises(ValueError, match=r"`static_args` must name .*\['rank'\]"):
        om.inject_hyperparams(om.muoneq, static_args=["rank"])


OF_OPTAX = {  # But novograd, whose `lax.cond` does not take float32 numbers.
    **{n: {} for n in ("adam", "adamw", "lion", "lamb", "nadamw", "amsgrad", "adan")},
    **{n: {} for n in ("adabelief", "adagrad", "adamax", "yogi", "radam")},
    **{n: {} for n in ("adafactor", "sm3", "lars", "fromage", "adadelta")},
    "sgd": {"momentum": 0.9},
    "rmsprop": {"momentum": 0.9},
}


@pytest.mark.quick("sgd")
@pytest.mark.parametrize(
    "name",
    [
        n
        if n in ("adam", "adamw", "lion", "sgd")
        else pytest.param(n, marks=pytest.mark.slow)
        for n in (*OF_OPTAX, "adamw_8bit")
    ],
)
def test_bfloat16_trees_keep_their_dtypes(name):
    """Under a scan; the updates are those of numbers that are not injected."""
    factory = getattr(optax, name, None) or om.adamw_8bit
    options = {"learning_rate": 0.01, **OF_OPTAX.get(name, {})}
    rng = np.random.default_rng(0)
    shapes = {"kernel": (64, 72), "bias": (72,)}  # One of them is large enough.
    params, grads = (
        {
            n: jnp.asarray(rng.standard_normal(s), jnp.bfloat16)
            for n, s in shapes.items()
        }
        for _ in range(2)
    )

    def run(tx):
        def step(state, _):
            updates, state = tx.update(grads, state, params)
            return state, updates

        return jax.jit(lambda s: jax.lax.scan(step, s, length=2))(tx.init(params))[1]

    got, want = run(om.inject_hyperparams(factory)(**options)), run(factory(**options))
    for path, x in want.items():
        assert got[path].dtype == jnp.bfloat16
        x, y = (np.asarray(a, np.float32) for a in (x, got[path]))
        assert np.linalg.norm(y - x) < 0.03 * np.linalg.norm(x)


def test_random_keys_and_python_numbers_pass_through_a_state():
    start = (jax.random.key(0), 0, np.ones((), jnp.bfloat16))

    def make(scale):
        def update(updates, state, params=None):
            del params
            return updates, (state[0], state[1] + 1, state[2] * scale)

        return optax.GradientTransformation(lambda _: start, update)

    tx = om.inject_hyperparams(make)(scale=1.0)
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert state.inner_state[1] == 1
    assert state.inner_state[2].dtype == jnp.bfloat16
