"""Permutations that are split over a mesh as the matrices or otherwise."""

import contextlib

import jax
import numpy as np
import pytest
from _matrices import gaussian
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from optax_matrix.linalg.permuted_blocks import permute, unpermute

SPLIT = {"out": P(None, None, "model"), "in": P(None, "model")}
MADE = {"out": P(None, "data", "model"), "in": P(None, "model", "data")}


@pytest.mark.parametrize("context", [True, False], ids=["set_mesh", "no set_mesh"])
@pytest.mark.parametrize("move", [permute, unpermute])
@pytest.mark.parametrize("side", ["out", "in"])
def test_indices_and_matrices_may_be_split_by_one_axis(side, move, context):
    """XLA cannot split such a gather: "Slice dim size" (seen in Haliax)."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    x = np.float32(gaussian(2, 8, 8))
    perms = np.stack([np.random.default_rng(i).permutation(8) for i in (1, 2)])
    perms = perms.astype(np.int32)
    run = lambda x, p: move(x, {side: p})
    split = jax.jit(run, out_shardings=NamedSharding(mesh, MADE[side]))
    with jax.set_mesh(mesh) if context else contextlib.nullcontext():
        got = split(put(x, SPLIT[side]), put(perms, P(None, "model")))
    np.testing.assert_array_equal(got, jax.jit(run)(x, perms))
