"""`rotate_residual`: what it turns, and what it refuses.

tests/stacks/test_residual.py turns a LLaMA.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_matrix as om
from optax_matrix.weights import rotate_residual

READS = om.MatrixDimensionNumbers(-2, -1, residual="in")
WRITES = om.MatrixDimensionNumbers(-2, -1, residual="out")
RULE = om.matrices.by_path(numbers={"up": READS, "down": WRITES})


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


Q = np.linalg.qr(draw(4, 4))[0]


def test_readers_and_writers():
    params = {"up": draw(4, 6), "down": draw(6, 4), "scale": np.ones(4, np.float32)}
    turned = rotate_residual(params, Q, dimension_numbers=RULE)
    np.testing.assert_allclose(turned["up"], Q.T @ params["up"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(turned["down"], params["down"] @ Q, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(turned["scale"], 1)


def test_a_known_rotation_inside_jit():
    params = {"up": draw(4, 6), "down": draw(6, 4)}
    run = lambda p: rotate_residual(p, Q, dimension_numbers=RULE)
    close = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5)
    jax.tree.map(close, jax.jit(run)(params), run(params))


def test_layers_dtypes_and_the_way_back():
    params = {"up": jnp.asarray(draw(3, 4, 6), jnp.bfloat16), "down": draw(3, 6, 4)}
    there = jax.jit(lambda p: rotate_residual(p, Q, dimension_numbers=RULE))(params)
    back = rotate_residual(there, Q.T, dimension_numbers=RULE)
    assert there["up"].dtype == jnp.bfloat16
    np.testing.assert_allclose(back["down"], params["down"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(there["down"], params["down"] @ Q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("params", "rotation", "message"),
    [
        ({"up": draw(4, 6)}, np.ones((4, 3)), "`rotation` must be a square matrix"),
        ({"up": draw(4, 6)}, 2 * np.eye(4), "must be orthogonal, got .* of 3; pass"),
        ({"up": draw(5, 6)}, np.eye(4), r"stream of 4 .* got 'up' .* with 5 on it"),
        ({"mix": draw(4, 6)}, np.eye(4), r"got 'mix' .* with unknown sides; pass"),
    ],
)
def test_mistakes(params, rotation, message):
    with pytest.raises(ValueError, match=message):
        rotate_residual(params, rotation, dimension_numbers=RULE)
