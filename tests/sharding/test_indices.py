"""State that indexes rows and columns is replicated, so that XLA compiles its gathers.

With permutations of a square side on the axis of the mesh that splits the other side,
it failed (jaxlib 0.10.2 and 0.12.0): "Slice dim size greater than dynamic slice
dimension".
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

AXES = ("fsdp", "tp")


@pytest.fixture
def mesh(cpus):
    kinds = (AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), AXES, axis_types=kinds, devices=cpus)


@pytest.mark.broad
def test_permutations_of_a_sharded_square_kernel(mesh):
    tx = om.poet(1e-2, block=4)
    make = lambda: {f"{i}/kernel": jnp.eye(16) + i for i in range(8)}
    init = lambda: tx.init(make())
    with jax.set_mesh(mesh):
        specs = om.state_specs(tx, jax.eval_shape(make), P("fsdp", "tp"))
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    state = jax.jit(init, out_shardings=places)()
    jax.tree.map(np.testing.assert_array_equal, state, init())
    perms, frames = (
        jax.tree.leaves(getattr(specs.inner_state, name)) for name in ("perms", "frame")
    )
    assert not any(map(any, perms))
    assert all(set(spec) >= set(AXES) for spec in frames)
