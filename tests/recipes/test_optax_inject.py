"""`optax.inject_hyperparams` on recipes: optax's own wrapper, not ours."""

import inspect

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from _registry import TABLE

import optax_matrix as om
from optax_matrix._arguments import KERNELS

RECIPES = [*TABLE]
SHAPES = {"up/kernel": (6, 10), "down/kernel": (10, 6), "norm/scale": (6,)}


def tree(seed):
    random = np.random.default_rng(seed)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def trained(tx):
    params = tree(0)
    state, update = tx.init(params), jax.jit(tx.update)
    for seed in (1, 2, 3):
        updates, state = update(tree(seed), state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_schedule_of_the_learning_rate(name):
    """With all defaults; what is no number is not injected."""
    schedule = optax.linear_schedule(1e-2, 1e-3, 3)
    recipe = getattr(om, name)
    injected = optax.inject_hyperparams(recipe)(learning_rate=schedule)
    got, wanted = trained(injected), trained(recipe(schedule))
    for path, x in wanted.items():
        np.testing.assert_allclose(got[path], x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["muon", "aro", "galore", "sumo"])
def test_no_default_is_a_function_or_an_int(name):
    for function in (getattr(om, name), getattr(om, f"scale_by_{name}")):
        for parameter in inspect.signature(function).parameters.values():
            default = parameter.default
            if default is not inspect.Parameter.empty:
                assert not callable(default), parameter
                assert isinstance(default, bool) or not isinstance(default, int)
    defaults = inspect.signature(om.galore).parameters
    assert str(defaults["rank"]) == "rank: Rank = 128"
    assert str(inspect.signature(om.dion).parameters["rank"]) == "rank: Rank = 1.0"
    assert defaults["qr"].default == "cholesky_qr"


@pytest.mark.slow
def test_kernels_by_name_are_the_functions():
    by_name = om.muon(0.1, polar="polar_svd")
    by_function = om.muon(0.1, polar=om.linalg.polar_svd)
    for path, x in trained(by_function).items():
        np.testing.assert_array_equal(trained(by_name)[path], x)
    block = om.orthogonalize("polar_svd")
    np.testing.assert_allclose(
        block.update({"w": 3 * jnp.eye(2)}, ())[0]["w"], jnp.eye(2), atol=1e-6
    )
    chosen = optax.inject_hyperparams(om.muon)(0.1, polar="polar_svd")
    for path, x in trained(by_function).items():
        np.testing.assert_allclose(trained(chosen)[path], x, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: om.muon(0.1, polar="svd"),
            "`polar` must be a function .* or one of newton_schulz, .*, got 'svd'",
        ),
        (
            lambda: om.aro(0.1, qr="polar_svd"),
            "`qr` must be .* or one of cholesky_qr, .*, got 'polar_svd'",
        ),
        (
            lambda: trained(optax.inject_hyperparams(om.galore)(0.1, rank=4)),
            "`rank` must be .*om.inject_hyperparams",
        ),
        (
            lambda: trained(optax.inject_hyperparams(om.racs)(0.1, rounds=3)),
            "`rounds` must be .*om.inject_hyperparams",
        ),
        (
            lambda: trained(
                optax.inject_hyperparams(om.muon)(
                    0.1, dimension_numbers=om.matrices.by_path(exclude="up")
                )
            ),
            "`dimension_numbers` .*om.inject_hyperparams",
        ),
    ],
)
def test_what_cannot_be_injected_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("argument", KERNELS)
def test_kernels_that_are_called_as_schedules_say_so(argument, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for kernel in KERNELS[argument].values():
        with pytest.raises(ValueError, match=r"shape \(\); optax.inject_hyperparams"):
            kernel(np.zeros((), jnp.int32))


@pytest.mark.broad
def test_flags_and_ints_of_ours_still_work():
    tx = om.inject_hyperparams(om.galore)(0.1, rank=4, update_interval=2)
    assert set(tx.init(tree(0)).hyperparams) >= {"learning_rate", "b1"}
    trained(tx)
