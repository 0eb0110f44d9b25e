"""What a step on CUDA leaves to the host: one decision at most, and no loop.

The host decides where a program branches, and waits for the device to do so. Some
library calls go through a batch from the host, one matrix at a time.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from _host import ONE_BY_ONE, decisions, library_calls
from _registry import RECIPES, small

SHAPES = {
    "q": {"kernel": (300, 300)},
    "up": {"kernel": (300, 640), "bias": (640,)},
    "down": {"kernel": (640, 300)},
    "layers": {"kernel": (3, 300, 300)},
}
CASES = {
    **RECIPES,
    "sumo-staggered": small("sumo", stagger=True),
    "alice-staggered-exact": small("alice", stagger=True, start="exact"),
}
CORE = {"muoneq", "soap", "sumo-staggered", "shampoo"}


def traced(name):
    is_shape = lambda x: isinstance(x, tuple)
    shape = lambda s: jax.ShapeDtypeStruct(s, jnp.float32)
    params = jax.tree.map(shape, SHAPES, is_leaf=is_shape)
    tx = CASES[name](1e-3)
    state = jax.eval_shape(tx.init, params)
    return jax.jit(tx.update).trace(params, state, params)


@pytest.mark.quick("muoneq")
@pytest.mark.daily("muoneq", "soap", "shampoo")
@pytest.mark.parametrize(
    "name",
    [n if n in CORE else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_a_step_on_cuda_has_one_decision_and_whole_batches(name):
    program = traced(name)
    assert decisions(program.jaxpr) <= 1
    calls = library_calls(program.lower(lowering_platforms=("cuda",)).as_text())
    assert not [call for call in calls if ONE_BY_ONE.search(call)]


def test_decisions_and_library_calls_are_counted():
    def step(x):
        x = jax.lax.cond(x[0, 0] > 0, lambda x: x, lambda x: x.T, x)
        x = jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x - 1, x)
        x = jax.lax.fori_loop(0, 3, lambda _, x: x + 1, x)
        other = functools.partial(jax.lax.fori_loop, 0, x[0, 0].astype(int))
        x = jax.lax.platform_dependent(
            x, cuda=lambda x: x, default=lambda x: other(lambda _, x: x, x)
        )
        return jnp.linalg.qr(x)[0]

    program = jax.jit(step).trace(jnp.ones((64, 64)))
    assert decisions(program.jaxpr) == 2
    assert decisions(program.jaxpr, "cpu") == 3
    calls = library_calls(program.lower(lowering_platforms=("cuda",)).as_text())
    assert any(ONE_BY_ONE.search(call) for call in calls)
