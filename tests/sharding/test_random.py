"""Random leaves, specs and owners on a mesh of three axes."""

import jax
import numpy as np
import pytest
from _meshes import KINDS
from _owned import (
    assert_same_path,
    assert_specs,
    cubic,
    given,
    normal,
    on_mesh,
    rollout,
)
from jax.sharding import PartitionSpec as P

import optax_matrix as om

AXES = ("a", "b", "c")


def _random_leaf(rng):
    """Shape, dimension numbers and spec: every mesh axis somewhere or nowhere."""
    ndim = int(rng.integers(2, 5))
    sides = [int(i) for i in rng.permutation(ndim)]
    ends = sorted(rng.choice(range(1, ndim + 1), 2, replace=False))
    output, reduction = sides[: ends[0]], sides[ends[0] : ends[1]]
    numbers = om.MatrixDimensionNumbers(tuple(reduction), tuple(output))
    entries = [[] for _ in range(ndim)]
    for name in rng.permutation(AXES):
        place = int(rng.integers(0, ndim + 1))
        if place < ndim:
            entries[place].append(str(name))
    shape = tuple(int(2 ** len(e) * rng.integers(1, 3)) for e in entries)
    return shape, numbers, P(*(tuple(e) or None for e in entries))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
def test_random_leaves(kind, seed, cpus):
    rng = np.random.default_rng(seed)
    mesh = jax.make_mesh((2, 2, 2), AXES, axis_types=(KINDS[kind],) * 3, devices=cpus)
    leaves = {f"w{i}": _random_leaf(rng) for i in range(6)}
    shapes = {path: shape for path, (shape, _, _) in leaves.items()}
    specs = {path: spec for path, (_, _, spec) in leaves.items()}
    rule = om.matrices.by_path(numbers={path: n for path, (_, n, _) in leaves.items()})
    axes = tuple(str(x) for x in rng.permutation(AXES)[: rng.integers(1, 4)])
    make = lambda placement: om.on_matrices(
        cubic, dimension_numbers=rule, placement=placement, probe=False
    )
    params, noise = normal(shapes, seed), normal(shapes, seed + 1)
    want, state, _ = rollout(make(None), params, noise)
    portable = om.to_portable(state, params)

    params, noise = (on_mesh(tree, specs, mesh) for tree in (params, noise))
    tx = make(om.owners(axes, param_specs=given(mesh, specs)))
    got, state, _ = rollout(tx, params, noise)
    assert_same_path(got, want)
    assert_specs(got[-1], specs, mesh)
    found = om.to_portable(state, params)
    assert found.keys() == portable.keys()
    for key, x in portable.items():
        np.testing.assert_allclose(found[key], x, rtol=1e-5, atol=1e-5, err_msg=key)
