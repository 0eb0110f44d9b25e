import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, strict

from optax_matrix.linalg import _products


@pytest.mark.broad
@pytest.mark.parametrize("m", [1, 2, 5, 8], ids=lambda m: f"m{m}")
def test_blocked_symmetric_dot_is_the_product(m):
    x = jnp.asarray(gaussian(3, m, 7), jnp.float32)
    with strict():
        gram = _products.blocked_symmetric_dot(x, x.mT)
        square = _products.blocked_symmetric_dot(gram, gram)
    reference = np.asarray(x, np.float64) @ np.asarray(x.mT, np.float64)
    np.testing.assert_allclose(gram, reference, atol=1e-5)
    np.testing.assert_allclose(square, reference @ reference, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(gram, gram.mT)


def test_blocked_symmetric_dot_forms_three_of_four_blocks():
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32)

    def flops(f):
        cost = jax.jit(lambda x: f(x, x.mT)).lower(x).compile().cost_analysis()
        return cost["flops"]

    saved = flops(_products.blocked_symmetric_dot) / flops(_products.precise_dot)
    assert saved == pytest.approx(0.75, abs=0.01)


def test_products_of_bfloat16_accumulate_in_float32():
    # Each row sums 4096 times 1/4096: in bfloat16 the sum stalls at 2^-4.
    x = jnp.full((2, 4096), 2.0**-6, jnp.bfloat16)
    for product in (
        _products.dot,
        _products.precise_dot,
        _products.blocked_symmetric_dot,
    ):
        gram = product(x, x.mT)
        assert gram.dtype == jnp.float32
        np.testing.assert_array_equal(gram, 1.0)


def compiled(shape, f=lambda x, symmetric_dot: symmetric_dot(x, x.mT)):
    def run(x):
        return _products.on_each_platform(f, x, _products.dot, cpu_kernel=f)

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


def test_one_by_one_keeps_batch_axes_and_values():
    x = jnp.asarray(gaussian(2, 3, 64, 64), jnp.float32)

    def kernel(x, symmetric_dot):
        return symmetric_dot(x, x.mT)

    ours = jax.jit(
        lambda x: _products.on_each_platform(
            kernel, x, _products.dot, cpu_kernel=kernel
        )
    )(x)
    np.testing.assert_allclose(ours, x @ x.mT, atol=1e-3)


def test_stack_sharded_over_an_explicit_mesh_is_not_looped_over(cpus):
    mesh = jax.sharding.Mesh(
        np.array(cpus), ("d",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    x = jnp.asarray(gaussian(8, 64, 64), jnp.float32)
    gram = lambda x, product: product(x, x.mT)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, jax.P("d"))
        out = jax.jit(
            lambda x: _products.on_each_platform(
                gram, x, _products.dot, cpu_kernel=gram
            )
        )(sharded)
    np.testing.assert_allclose(out, x @ x.mT, atol=1e-3)
    assert jax.typeof(out).sharding.spec[0] == "d"
