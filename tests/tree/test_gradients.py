"""Gradients that do not have the shapes of their parameters are refused, by leaf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import ones
from _registry import RECIPES
from _walks import walk
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.sharding import owners
from optax_matrix.tree import on_matrices

PARAMS = {"up": {"kernel": ones(4, 6), "bias": ones(6)}}
WRONG = [(6, 4), (3, 8), (2, 12), (8, 6), (24,), (1, 4, 6)]


def _grads(kernel=(4, 6), bias=(6,)):
    return {
        "up": {"kernel": np.ones(kernel, np.float32), "bias": np.ones(bias, np.float32)}
    }


def _refused(tx, grads, params=PARAMS):
    """The message with which an update is refused, which nothing has to compute."""
    state = jax.eval_shape(tx.init, params)
    with pytest.raises(ValueError, match="`updates`") as error:
        jax.eval_shape(tx.update, grads, state, params)
    return str(error.value)


@pytest.mark.broad
@walk("name", RECIPES)
def test_every_recipe_refuses_kernels_of_another_shape(name):
    tx = RECIPES[name](1e-3)
    for shape in WRONG:
        message = _refused(tx, _grads(kernel=shape))
        assert f"got {shape} for 'up/kernel' of shape (4, 6)" in message


@pytest.mark.parametrize("shape", [(1,), (4, 6), (3,), ()])
def test_recipes_refuse_other_leaves_of_another_shape(shape):
    """Adam would broadcast, and its state would change its shape."""
    message = _refused(om.muon(1e-3), _grads(bias=shape))
    assert f"got {shape} for 'up/bias' of shape (6,)" in message


@pytest.mark.parametrize("name", ["scale_by_muoneq", "scale_by_aro", "scale_by_racs"])
@pytest.mark.parametrize("shape", WRONG)
def test_chains_refuse_kernels_of_another_shape(name, shape):
    tx = optax.chain(getattr(om, name)(), optax.scale(-1e-3))
    assert "'up/kernel'" in _refused(tx, _grads(kernel=shape))


def test_gradients_without_a_parameter_are_refused():
    tx = on_matrices(optax.trace(0.9))
    extra = {**PARAMS, "down": ones(4, 6)}
    assert "'down', which `params` lack" in _refused(tx, extra)


@pytest.mark.broad
def test_gradients_may_be_fewer_than_parameters():
    tx = on_matrices(optax.scale(2.0))
    frozen = {"up": PARAMS["up"], "down": None}
    state = tx.init(frozen)
    updates, _ = tx.update(frozen, state, {**PARAMS, "down": jnp.ones((4, 6))})
    np.testing.assert_array_equal(updates["up"]["kernel"], 2.0)


def test_without_parameters_the_state_tells():
    tx = on_matrices(optax.trace(0.9))
    state = jax.eval_shape(tx.init, PARAMS)
    for shape in WRONG:
        with pytest.raises(ValueError, match=r"another dtype or shape"):
            jax.eval_shape(tx.update, _grads(kernel=shape), state)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("owned", [False, True])
def test_sharded_gradients_of_another_shape_are_refused(cpus, kind, owned):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2, devices=cpus[:4])
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    params = {"kernel": put(ones(4, 8), "x", "y"), "bias": put(ones(8), "y")}
    placement = owners.from_params(params, ("x", "y")) if owned else None
    tx = om.muon(1e-3, placement=placement)
    state = tx.init(params)
    for shape in [(8, 4), (2, 16), (16, 2), (8, 8)]:
        grads = {**params, "kernel": put(np.ones(shape, np.float32), "x", "y")}
        for update in (tx.update, jax.jit(tx.update)):
            with pytest.raises(ValueError, match=r"for 'kernel' of shape \(4, 8\)"):
                update(grads, state, params)


def test_wrappers_hand_the_refusal_on():
    for wrap in (
        functools.partial(optax.apply_if_finite, max_consecutive_errors=3),
        lambda tx: optax.masked(tx, {"up": True}),
        lambda tx: optax.chain(optax.clip_by_global_norm(1.0), tx),
    ):
        assert "'up/kernel'" in _refused(wrap(om.muon(1e-3)), _grads(kernel=(6, 4)))
