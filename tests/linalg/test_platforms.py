"""Kernels on stacks, as each platform runs them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian

from optax_matrix.linalg.products import dot
from optax_matrix.linalg.quintic_steps import on_stacks


def compiled(shape, f=lambda x, symmetric_dot: symmetric_dot(x, x.mT)):
    def run(x):
        return on_stacks(f, x, dot, cpu_kernel=f)

    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.jit(run).lower(x).compile().as_text()


@pytest.mark.parametrize(
    ("shape", "loops"),
    [((4, 64, 64), True), ((4, 8, 8), False), ((64, 64), False), ((1, 64, 64), False)],
    ids=["large_stack", "small_stack", "matrix", "stack_of_one"],
)
def test_only_stacks_of_large_matrices_go_one_by_one_on_cpu(shape, loops):
    text = compiled(shape)
    assert (" while(" in text) is loops
    assert "conditional" not in text


def test_large_matrices_use_the_blocked_product():
    assert compiled((512, 512)).count(" dot(") == 3
    assert compiled((256, 256)).count(" dot(") == 1


@pytest.mark.broad
def test_one_by_one_keeps_batch_axes_and_values():
    x = jnp.asarray(gaussian(2, 3, 64, 64), jnp.float32)

    def kernel(x, symmetric_dot):
        return symmetric_dot(x, x.mT)

    ours = jax.jit(lambda x: on_stacks(kernel, x, dot, cpu_kernel=kernel))(x)
    np.testing.assert_allclose(ours, x @ x.mT, atol=1e-3)


def test_stack_sharded_over_an_explicit_mesh_is_not_looped_over(cpus):
    mesh = jax.sharding.Mesh(
        np.array(cpus), ("d",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    x = np.float32(gaussian(8, 64, 64))
    gram = lambda x, product: product(x, x.mT)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, jax.P("d"))
        out = jax.jit(lambda x: on_stacks(gram, x, dot, cpu_kernel=gram))(sharded)
    np.testing.assert_allclose(out, x @ x.mT, atol=1e-3)
    assert jax.typeof(out).sharding.spec[0] == "d"
