"""Owners under Flax NNX with sharding metadata, Linen boxes and checkpoints."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

AXES = ("fsdp", "tp")
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture
def mesh(cpus):
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), AXES, axis_types=kinds, devices=cpus)


class NnxMLP(nnx.Module):
    def __init__(self, rngs, partitioned):
        init = nnx.initializers.lecun_normal()
        named = lambda *axes: nnx.with_partitioning(init, axes) if partitioned else init
        self.up = nnx.Linear(8, 16, kernel_init=named("fsdp", "tp"), rngs=rngs)
        self.down = nnx.Linear(16, 8, kernel_init=named("tp", "fsdp"), rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


def _train_nnx(model, tx, steps=3):
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        loss = lambda m: jnp.mean((m(X) - X) ** 2)
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    return [float(step(model, optimizer)) for _ in range(steps)], optimizer


@pytest.mark.daily("from_params")
@pytest.mark.broad
@pytest.mark.parametrize("given", ["param_specs", "from_params"])
def test_nnx_with_sharding_metadata(mesh, given):
    want, _ = _train_nnx(NnxMLP(nnx.Rngs(0), partitioned=False), om.muoneq(1e-2))
    with jax.set_mesh(mesh):
        model = NnxMLP(nnx.Rngs(0), partitioned=True)
        params = nnx.state(model, nnx.Param)
        if given == "param_specs":
            specs = nnx.get_partition_spec(params)
            placement = om.owners(AXES, param_specs=specs)
        else:
            placement = om.owners.from_params(params, AXES)
        tx = om.muoneq(1e-2, placement=placement)
        losses, optimizer = _train_nnx(model, tx)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    stacks = [x for x in jax.tree.leaves(nnx.state(optimizer)) if x.ndim == 3]
    assert len(stacks) == 2
    assert all(x.sharding.spec[0] == AXES for x in stacks)
    assert model.up.kernel.get_value().sharding.spec == P(*AXES)


class LinenMLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        named = lambda *axes: nn.with_partitioning(init, axes)
        x = nn.gelu(nn.Dense(16, kernel_init=named("fsdp", "tp"))(x))
        return nn.Dense(8, kernel_init=named("tp", "fsdp"))(x)


@pytest.mark.broad
def test_linen_boxes_born_sharded(mesh):
    model = LinenMLP()
    make = lambda: model.init(jax.random.key(0), X)
    abstract = jax.eval_shape(make)
    specs = nn.get_partition_spec(abstract)
    placement = om.owners(AXES, param_specs=specs)
    tx = om.muon(1e-2, placement=placement)
    shardings = nn.get_sharding(abstract, mesh)
    variables = jax.jit(make, out_shardings=shardings)()
    with jax.set_mesh(mesh):
        state_specs = om.state_specs(tx, abstract, specs)
    of_spec = lambda spec: NamedSharding(mesh, spec)
    state_shardings = jax.tree.map(of_spec, state_specs)
    state = jax.jit(tx.init, out_shardings=state_shardings)(variables)

    def step(variables, state):
        loss = lambda v: jnp.mean((model.apply(v, X) - X) ** 2)
        value, grads = jax.value_and_grad(loss)(variables)
        updates, state = tx.update(grads, state, variables)
        return optax.apply_updates(variables, updates), state, value

    outs = (shardings, state_shardings, None)
    sharded = jax.jit(step, out_shardings=outs, donate_argnums=(0, 1))
    losses = []
    for _ in range(3):
        variables, state, loss = sharded(variables, state)
        losses.append(float(loss))
    assert sharded._cache_size() == 1

    tx, variables = om.muon(1e-2), make()
    state, want = tx.init(variables), []
    for _ in range(3):
        variables, state, loss = jax.jit(step)(variables, state)
        want.append(float(loss))
    np.testing.assert_allclose(losses, want, rtol=1e-5)


@pytest.mark.broad
def test_orbax_restores_into_the_owner_layout(mesh, tmp_path):
    kernel = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    sharding = NamedSharding(mesh, P(*AXES))
    params = {name: jax.device_put(kernel, sharding) for name in "abc"}
    tx = om.muon(1e-2, placement=om.owners.from_params(params, AXES))
    _, state = jax.jit(tx.update)(params, jax.jit(tx.init)(params), params)
    specs = om.state_specs(tx, params)
    target = jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
        ),
        jax.eval_shape(tx.init, params),
        specs,
    )
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "state", state)
        checkpoints.wait_until_finished()
        restored = checkpoints.restore(tmp_path / "state", target)
    om.check_restored(restored)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.broad
def test_a_state_of_another_mesh_is_refused_and_portable(cpus):
    kernel = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)

    def on(shape):
        size = shape[0] * shape[1]
        mesh = jax.make_mesh(shape, AXES, (AxisType.Explicit,) * 2, devices=cpus[:size])
        sharding = NamedSharding(mesh, P(*AXES))
        return {name: jax.device_put(kernel, sharding) for name in "abc"}

    tx = om.on_matrices(optax.trace(0.9), placement=om.owners(AXES))
    large, small = on((4, 2)), on((2, 1))
    _, state = jax.jit(tx.update)(large, tx.init(large))
    with pytest.raises(ValueError, match="to_portable"):
        jax.jit(tx.update)(small, state)
    moved = om.from_portable(om.to_portable(state, large), tx.init(small), small)
    updates, _ = jax.jit(tx.update)(small, moved)
    np.testing.assert_allclose(updates["b"], 1.9 * kernel, rtol=1e-6)
