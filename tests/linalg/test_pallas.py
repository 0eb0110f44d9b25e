"""Kernels of our own: which calls reach them, and that all others are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, ones
from _symmetric_products import symmetric_products

import optax_matrix as om
from optax_matrix.linalg import newton_schulz, pallas

OWN = functools.partial(newton_schulz, kernel="pallas")


def test_a_kernel_has_a_known_name():
    with pytest.raises(ValueError, match="`kernel` must be 'auto', 'xla' or 'pallas'"):
        jax.eval_shape(lambda: newton_schulz(jnp.ones((2, 2)), kernel="cuda"))


@pytest.mark.parametrize(
    ("dtype", "rule"), [(jnp.float32, "bfloat16, float16"), (jnp.int32, "a floating")]
)
def test_other_products_have_no_kernel(dtype, rule):
    with pytest.raises(ValueError, match=f"`compute_dtype` must be {rule}"):
        jax.eval_shape(lambda: OWN(jnp.ones((2, 2)), compute_dtype=dtype))


@pytest.mark.parametrize("call", [OWN, jax.jit(OWN), jax.vmap(OWN)])
def test_a_platform_without_a_kernel_is_refused(call):
    with pytest.raises(ValueError, match="'pallas' on cpu; only Hopper GPUs"):
        call(jax.device_put(np.float32(gaussian(2, 3, 4))))


def test_auto_is_the_form_of_the_compiler():
    x = np.float32(gaussian(2, 3, 5))
    auto = jax.jit(newton_schulz)(x)
    of_xla = jax.jit(lambda x: newton_schulz(x, kernel="xla"))(x)
    np.testing.assert_array_equal(auto, of_xla)


def test_recipes_reach_the_kernel():
    params = {"a": {"kernel": ones(8, 8)}}
    tx = om.muon(1e-3, polar=OWN)
    with pytest.raises(ValueError, match="'pallas' on cpu"):
        jax.jit(tx.update)(params, tx.init(params), params)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(256, 128), (2, 1, 300, 100)])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_interpreted_products_equal_plain_ones(shape, dtype):
    mosaic = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    if not hasattr(mosaic, "InterpretGPUParams"):
        pytest.skip("this JAX has no interpreter of Mosaic GPU")
    options = {"interpret": mosaic.InterpretGPUParams(), "processors": 4}
    x = (jax.random.normal(jax.random.key(0), shape) / 16).astype(dtype)
    gram = functools.partial(pallas.gram, **options)
    quadratic = functools.partial(pallas.quadratic, **options)
    for ours, theirs in symmetric_products(gram, quadratic, x):
        error = jnp.abs(ours.astype(jnp.float32) - theirs).max()
        assert error <= jnp.finfo(dtype).eps * jnp.abs(theirs).max()
        assert (ours == ours.mT).all()
