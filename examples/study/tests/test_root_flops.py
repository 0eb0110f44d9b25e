"""Milliseconds of products in a step of Shampoo and Mousse on an H200, by calculation.

12 layers of 768/3072, 84 matrices; three TF32 passes, 165 TFLOP/s. Products of
Newton-Schulz are cheaper than that. The largest eigenvalue counts at every step.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

import optax_matrix as om
from examples.study.benchmarks._flops import product_flops
from examples.study.benchmarks._models import Model
from optax_matrix.linalg import _inverse_root
from optax_matrix.linalg._inverse_root import root_polynomials

RATE = 165e9  # FLOPs in a millisecond.


@functools.cache
def flops(name, interval, block_size, steps=None):
    """FLOPs of a renewal, with some steps of the roots in place of all."""
    jax.clear_caches()  # Functions that are already traced keep their steps.
    with pytest.MonkeyPatch.context() as patch:
        if steps is not None:
            few = lambda p, eps: root_polynomials(p, eps)[-steps:]
            patch.setattr(_inverse_root, "root_polynomials", few)
        found = _flops(name, interval, block_size)
    jax.clear_caches()
    return found


def _flops(name, interval, block_size):
    shapes = Model(layers=12, embed=768, mlp=3072).shapes
    params = {
        f"{i}/{path}/kernel": jax.ShapeDtypeStruct(shape, jnp.float32)
        for i in range(12)
        for path, shape in shapes.items()
    }
    make = getattr(om, f"scale_by_{name}")
    tx = make(update_interval=interval, block_size=block_size)
    state = jax.eval_shape(tx.init, params)
    return product_flops(jax.make_jaxpr(tx.update)(params, state), 0)[0]


def step_of_roots(*which):
    return flops(*which, 2) - flops(*which, 1)


def milliseconds(*which):
    interval = which[1]
    renewal = flops(*which)
    # The last step has two of the five products of the others.
    steady = flops(*which, 1) - step_of_roots(*which) * 2 / 5
    return (steady + (renewal - steady) / interval) / RATE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "interval", "block_size", "most"),
    [
        ("mousse", 10, 1024, 60),
        ("mousse", 10, 768, 60),
        ("mousse", 10, None, 130),
        ("shampoo", 1, 1024, 200),
        ("shampoo", 1, None, 800),
    ],
)
def test_milliseconds_of_products(name, interval, block_size, most):
    found = milliseconds(name, interval, block_size)
    print(f"{name} interval={interval} block_size={block_size}: {found:.1f} ms")
    assert most / 2 < found < most


@pytest.mark.slow
def test_a_step_of_the_roots_in_blocks_of_1024_costs_a_fifth():
    step = lambda size: step_of_roots("shampoo", 1, size)
    assert step(None) == pytest.approx(11e12, rel=0.02)
    assert step(1024) == pytest.approx(2.09e12, rel=0.02)
