"""Chunks of a group: every way to exchange them gives the same step."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from examples.study.benchmarks import chunks
from optax_matrix.linalg import newton_schulz

ARGS = argparse.Namespace(chunks=3, outputs=8, inputs=16)


def stepped(row, cpus, w, g, momenta):
    """Parameters and momenta after a step, as arrays of all chunks."""
    mesh = jax.make_mesh(
        (8,), (chunks.AXIS,), axis_types=(AxisType.Auto,), devices=cpus
    )
    program = chunks.lowered(row, ARGS, mesh).compile()
    given = (w, g) if row.startswith("scanned") else (list(w), list(g))
    args = (*given, momenta.reshape(3, -1, 16))
    args = jax.device_put(args, program.input_shardings[0])
    leaves, momenta = program(*args)
    return np.asarray(leaves), np.asarray(momenta).reshape(g.shape)


@pytest.mark.broad
@pytest.mark.parametrize("row", chunks.WRITTEN)
def test_a_step_is_that_of_muon(row, cpus):
    rng = np.random.default_rng(0)
    w, g, momenta = rng.standard_normal((3, 3, 8, 8, 16)).astype(np.float32)
    leaves, new = stepped(row, cpus, w, g, momenta)
    # Gradients and updates travel in bfloat16, which has eight bits.
    np.testing.assert_allclose(new, 0.95 * momenta + g, 0, 2**-8 * np.abs(g).max())
    update = newton_schulz(jnp.asarray(0.95 * (0.95 * momenta + g) + g))
    np.testing.assert_allclose(leaves, w - update, 0, 0.05)
