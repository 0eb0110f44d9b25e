"""Linen's `TrainState`: saved whole by Orbax, and its optimizer's state on the host."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from clients._training import NAMES, RECIPES, assert_close, assert_equal, train
from flax.training.train_state import TrainState
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

pytestmark = pytest.mark.broad
recipes = pytest.mark.parametrize("name", NAMES)
X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.gelu(nn.Dense(6)(x)))


MODEL = MLP()
PARAMS = MODEL.init(jax.random.key(0), X)


def loss(params):
    return jnp.mean((MODEL.apply(params, X) - X) ** 2)


def make(name):
    return getattr(om, name)(1e-2, **RECIPES[name])


def created(name):
    return TrainState.create(apply_fn=MODEL.apply, params=PARAMS, tx=make(name))


@jax.jit
def step(state):
    return state.apply_gradients(grads=jax.grad(loss)(state.params))


@recipes
def test_apply_gradients_takes_the_steps_of_plain_optax(name):
    state = created(name)
    for _ in range(3):
        state = step(state)
    want, losses = train(make(name), PARAMS, loss)
    assert_close(state.params, want)
    assert loss(want) < losses[0]


@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # Older Orbax.
@recipes
def test_orbax_restores_it_and_training_goes_on_as_if_never_stopped(name, tmp_path):
    state = step(step(created(name)))
    abstract = jax.eval_shape(lambda: created(name))  # As after a restart.
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", abstract)
    om.check_restored(restored.opt_state)
    assert_equal(restored.opt_state, state.opt_state)
    assert_equal(step(restored).params, step(state).params)


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10),
    reason="before JAX 0.10 CPU devices of a mesh have no memory of the host",
)
@recipes
def test_state_that_waits_on_the_host_changes_nothing(name, cpus):
    """`state_specs` places it; each step takes it to the device and back."""
    tx, mesh = (
        make(name),
        jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=cpus[:2]),
    )
    place = lambda kind: lambda spec: NamedSharding(mesh, spec, memory_kind=kind)
    specs = om.state_specs(tx, PARAMS, jax.tree.map(lambda _: P(), PARAMS))
    host, device = (
        jax.tree.map(place(kind), specs) for kind in ("pinned_host", "device")
    )
    replicated = NamedSharding(mesh, P())
    params = jax.device_put(PARAMS, replicated)
    state = jax.jit(tx.init, out_shardings=host)(params)

    def update(params, state):
        state = jax.device_put(state, device)
        grads = jax.grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    update = jax.jit(update, donate_argnums=1, out_shardings=(replicated, host))
    for _ in range(3):
        params, state = update(params, state)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state)}
    assert kinds == {"pinned_host"}
    assert update._cache_size() == 1
    assert_close(params, train(tx, PARAMS, loss)[0])
