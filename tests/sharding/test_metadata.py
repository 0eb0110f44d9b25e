"""State says where it lies in the terms of the framework that its parameters use."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

AXES = ("fsdp", "tp")
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
RULES = (("embed", "fsdp"), ("mlp", "tp"))


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def mesh(request, cpus):
    kinds = (request.param,) * 2
    return jax.make_mesh((4, 2), AXES, axis_types=kinds, devices=cpus)


@pytest.fixture
def auto(cpus):
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), AXES, axis_types=kinds, devices=cpus)


class Net(nnx.Module):
    """Two kernels (in, out), one a transposed copy of the other in shape and names."""

    def __init__(self, rngs, names=AXES, **metadata):
        init = nnx.initializers.lecun_normal()
        named = lambda *axes: nnx.with_partitioning(init, axes, **metadata)
        embed, mlp = names
        self.up = nnx.Linear(8, 16, kernel_init=named(embed, mlp), rngs=rngs)
        self.down = nnx.Linear(16, 8, kernel_init=named(mlp, embed), rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


@nnx.jit
def _step(model, optimizer):
    loss = lambda m: jnp.mean((m(X) - X) ** 2)
    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def _specs_of(optimizer):
    """The specs that the framework reads, by shape, apart from replicated state."""
    state = nnx.state(optimizer)
    specs = jax.tree.leaves(nnx.get_partition_spec(state))
    pairs = zip(jax.tree.leaves(state), specs, strict=True)
    return {(x.shape, tuple(spec)) for x, spec in pairs if any(spec)}


# soap's state: two moments and two Gram matrices and bases for each kernel.
UP, DOWN = ((1, 16, 8), (None, "tp", "fsdp")), ((1, 8, 16), (None, "fsdp", "tp"))
SQUARE = {
    # A square side keeps its own axis; the name of the other side goes where it fits.
    ((1, 16, 16), (None, "tp", "fsdp")),
    ((1, 8, 8), (None, "fsdp", "tp")),
}


@pytest.mark.broad
def test_nnx_state_inherits_the_metadata_of_its_leaves(auto):
    with jax.set_mesh(auto):
        model = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, om.soap(1e-2), wrt=nnx.Param)
        want = {UP, DOWN} | SQUARE
        assert _specs_of(optimizer) == want
        shardings = nnx.get_named_sharding(nnx.state(optimizer), auto)
        for _ in range(2):
            _step(model, optimizer)
            assert _specs_of(optimizer) == want
        pairs = (jax.tree.leaves(t) for t in (nnx.state(optimizer), shardings))
        for x, sharding in zip(*pairs, strict=True):
            if any(sharding.spec):
                assert x.sharding.is_equivalent_to(sharding, x.ndim)
