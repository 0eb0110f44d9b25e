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

RATE = 165e9  # FLOPs in a millisecond.
NEWTON_STEPS = 13  # As tests/linalg/test_inverse_root.py shows.


@functools.cache
def flops(name, interval, block_size, trips):
    shapes = Model(layers=12, embed=768, mlp=3072).shapes
    params = {
        f"{i}/{path}/kernel": jax.ShapeDtypeStruct(shape, jnp.float32)
        for i in range(12)
        for path, shape in shapes.items()
    }
    make = getattr(om, f"scale_by_{name}")
    tx = make(update_interval=interval, block_size=block_size)
    state = jax.eval_shape(tx.init, params)
    return product_flops(jax.make_jaxpr(tx.update)(params, state), trips)[0]


def milliseconds(name, interval, block_size):
    steady, renewal = (flops(name, interval, block_size, t) for t in (0, NEWTON_STEPS))
    return (steady + (renewal - steady) / interval) / RATE


@pytest.mark.broad
@pytest.mark.daily("mousse-10-1024-60", "shampoo-1-1024-200")
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
def test_a_step_of_newton_in_blocks_of_1024_costs_a_fifth():
    step = lambda size: flops("shampoo", 1, size, 1) - flops("shampoo", 1, size, 0)
    assert step(None) == pytest.approx(8.8e12, rel=0.02)
    assert step(1024) == pytest.approx(1.67e12, rel=0.02)
