"""The parts of a stack, and what XLA's CPU compiler makes of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from optax_matrix.stacks.parts import parts

STACK = np.random.default_rng(0).normal(size=(12, 3, 2)).astype(np.float32)

SECTIONS = om.MatrixDimensionNumbers(output_sections=(16, 8))


def sliced(stack, size):
    return [stack[i : i + size] for i in range(0, len(stack), size)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_parts_are_those_of_the_stack(dtype):
    step = jnp.finfo(dtype).eps  # Bits that are an odd number.
    cut = jax.jit(lambda x: (parts(x, 1), parts(x, 2)))
    for first in (0.0, np.nan, np.inf, -1.5, 1 + step, 2 + 2 * step, -1 - step):
        stack = STACK.astype(jnp.dtype(dtype))
        stack[0, 0, 0] = first
        wanted = sliced(stack, 1), sliced(stack, 2)
        equal = lambda x, y: np.testing.assert_array_equal(np.float32(x), np.float32(y))
        jax.tree.map(equal, cut(stack), wanted)


def test_runs_at_once_are_sliced_as_one():
    runs = np.stack([STACK, 2 * STACK])
    program = jax.jit(jax.vmap(lambda x: parts(x, 1))).lower(runs).compile()
    for got, i in zip(program(runs), range(12), strict=True):
        np.testing.assert_array_equal(got, runs[:, i : i + 1])
    assert "gather(" not in program.as_text()


def test_derivatives_are_those_of_slices():
    weights = np.arange(1.0, 13.0, dtype=np.float32)
    total = lambda x: sum(w * (y**2).sum() for w, y in zip(weights, x, strict=True))
    got = jax.jit(jax.grad(lambda x: total(parts(x, 1))))(STACK)
    np.testing.assert_allclose(got, 2 * weights[:, None, None] * STACK, rtol=1e-6)


def kernels(f, *args):
    """The different computations that XLA compiles for a CPU."""
    text = jax.jit(f).lower(*args).compile().as_text()
    bodies = re.findall(r"^%\S+ \(.*?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    unnumbered = lambda body: re.sub(
        r"\.\d+|, metadata=.*|[%\w.]*param[\w.]*", "", body
    )
    return {unnumbered(body) for body in bodies}


def model(layers):
    shapes = {"q": (8, 8), "up": (8, 16), "fused": (8, 24)}
    of = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
    return {
        f"layer_{i}": {k: {"kernel": x} for k, x in of.items()} for i in range(layers)
    }


def test_the_kernels_of_an_update_do_not_grow_with_depth():
    def count(layers):
        params = model(layers)
        tx = om.on_matrices(
            optax.scale(-0.1),
            after=optax.add_decayed_weights(0.1),
            dimension_numbers=om.matrices.by_path(numbers={"fused": SECTIONS}),
        )
        return len(kernels(tx.update, params, jax.eval_shape(tx.init, params), params))

    assert count(16) <= count(6) + 1
