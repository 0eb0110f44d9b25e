"""Leaves of every form: sections, heads, batch axes, replicated, alone among owners."""

import jax
import numpy as np
import pytest
from _meshes import KINDS, collectives, make_mesh
from _owned import (
    assert_same_path,
    assert_specs,
    cubic,
    given,
    normal,
    on_mesh,
    rollout,
)
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix import MatrixDimensionNumbers as Numbers

NUMBERS = om.matrices.by_path(
    numbers={
        "qkv": Numbers(0, 1, output_sections=(8, 4, 4)),
        "per_head": Numbers(0, 1, output_sections=4),
        "down": Numbers(0, 1, output_sections=2, reduction_sections=(6, 2)),
        "between": Numbers(0, 2),
        "last": Numbers(0, 1),
    }
)
# Axis 1 of the attention kernels, which are small, might count layers.
pytestmark = pytest.mark.filterwarnings("ignore:Check how these parameters")
LEAVES = {
    "qkv": ((6, 16), P(None, "fsdp")),
    "per_head": ((6, 16), P("tp", "fsdp")),
    "down": ((8, 4), P(("fsdp", "tp"), None)),
    "attn/query/kernel": ((8, 4, 2), P(None, "fsdp", "tp")),
    "attn/key/kernel": ((8, 4, 2), P(None, None, "tp")),
    "attn/value/kernel": ((8, 4, 2), P("fsdp", "tp", None)),
    "attn/out/kernel": ((4, 4, 6), P("tp", "fsdp", None)),
    "w_swapped": ((8, 6), P(("tp", "fsdp"), None)),
    "between": ((4, 3, 6), P("fsdp", None, "tp")),
    "last": ((8, 6, 3), P("fsdp", "tp")),
    "grid/kernel": ((4, 2, 8, 10), P("fsdp", "tp")),
    "pairs/kernel": ((2, 3, 8, 12), P("tp", None, "fsdp")),
    "layers/kernel": ((3, 8, 4), P(None, "tp", "fsdp")),
    "stack/kernel": ((4, 6, 4), P("fsdp", None, "tp")),
    "w_alone": ((8, 10), P("fsdp", "tp")),
    "w_whole/0": ((6, 4), P()),
    "w_whole/1": ((6, 4), P()),
    "w_half": ((12, 4), P("fsdp")),
    "w_zero": ((8, 14), P("fsdp", "tp")),
    "bias": ((8,), P("tp")),
}
SHAPES = {path: shape for path, (shape, _) in LEAVES.items()}
SPECS = {path: spec for path, (_, spec) in LEAVES.items()}


@pytest.fixture(params=KINDS)
def mesh(request, cpus):
    return make_mesh("fsdp4-tp2", request.param, cpus)


def _trees():
    params, noise = normal(SHAPES, 0), normal(SHAPES, 1)
    for tree in (params, noise):
        tree["w_zero"] = np.zeros_like(tree["w_zero"])
    return params, noise


@pytest.fixture(scope="module")
def reference():
    tx = om.on_matrices(cubic(), dimension_numbers=NUMBERS)
    params, noise = _trees()
    path, state, _ = rollout(tx, params, noise)
    return path, om.to_portable(state, params)


def _owned(mesh, axes):
    placement = om.owners(axes, param_specs=given(mesh, SPECS))
    tx = om.on_matrices(
        cubic(), dimension_numbers=NUMBERS, placement=placement, probe=False
    )
    params, noise = (on_mesh(tree, SPECS, mesh) for tree in _trees())
    return params, *rollout(tx, params, noise)


@pytest.mark.daily("auto-axes0", "explicit-fsdp")
@pytest.mark.broad
@pytest.mark.parametrize(
    "axes",
    [
        ("fsdp", "tp"),
        "fsdp",
        pytest.param(("tp", "fsdp"), marks=pytest.mark.slow),
        pytest.param(("tp",), marks=pytest.mark.slow),
    ],
)
def test_every_form_of_leaf(mesh, axes, reference):
    params, path, state, step = _owned(mesh, axes)
    want, portable = reference
    assert_same_path(path, want)
    assert_specs(path[-1], SPECS, mesh)
    found = om.to_portable(state, params)
    assert found.keys() == portable.keys()
    for key, x in portable.items():
        np.testing.assert_allclose(found[key], x, rtol=1e-5, atol=1e-5, err_msg=key)
    assert not np.any(path[-1]["w_zero"])
    if len(axes) == 2 and axes != "fsdp":
        # 16 groups of leaves are split along owners, and most have fewer matrices than
        # owners: seven exchanges there and back. Of whole/*, half, qkv and key each
        # device makes a share along the axes that do not split them; two share one.
        assert collectives(step.lower(params, params, state).compile()) == {
            "all-to-all": 2 * 7,
            "all-gather": 3,
        }


@pytest.mark.broad
@pytest.mark.parametrize(
    ("max_batch", "of_each", "of_layers"),
    [(1, [8, 8, 8], [8, 8]), (2, [16, 8], [16]), (None, [24], [16])],
)
def test_max_batch_bounds_the_stacks_of_a_device(mesh, max_batch, of_each, of_layers):
    """A stack of 8 has one matrix on each device; a leaf's matrices stay together."""
    shapes = {f"w_each/{i}": (12, 4) for i in range(20)}
    shapes |= {f"w_layers/{i}": (8, 4, 6) for i in range(2)}
    specs = dict.fromkeys(shapes, P("fsdp", "tp"))
    specs |= {f"w_layers/{i}": P(("fsdp", "tp"), None, None) for i in range(2)}
    params = on_mesh(normal(shapes, 0), specs, mesh)
    placement = om.owners(("fsdp", "tp"), param_specs=given(mesh, specs))
    tx = om.on_matrices(cubic(), placement=placement, max_batch=max_batch, probe=False)
    state = tx.init(params)
    rows = [(x.shape[1], len(x)) for x in jax.tree.leaves(state.inner_state)]
    assert sorted(rows) == sorted(
        [(4, n) for n in of_each] + [(6, n) for n in of_layers]
    )
    updates, _ = jax.jit(tx.update)(params, state)
    whole = om.on_matrices(cubic(), probe=False)
    host = jax.tree.map(np.asarray, params)
    want, _ = jax.jit(whole.update)(host, whole.init(host))
    assert_same_path([updates], [want])


@pytest.mark.parametrize(
    "stacks",
    [
        {
            "6x8": ((8, 6), P("fsdp", "tp"), (4, 6, 8), P("fsdp", "tp")),
            "4x8": ((8, 4), P("tp"), (4, 4, 8), P("fsdp", None, "tp")),
        },
        # Mesh axes that count matrices already are owners, named or not.
        {"10x6": ((2, 6, 10), P("tp"), (8, 10, 6), P(("fsdp", "tp")))},
    ],
    ids=["split", "batch"],
)
def test_axes_that_are_no_owners(mesh, stacks):
    shapes = {name: shape for name, (shape, *_) in stacks.items()}
    specs = {name: spec for name, (_, spec, *_) in stacks.items()}
    params = on_mesh(normal(shapes, 0), specs, mesh)
    placement = om.owners("fsdp", param_specs=given(mesh, specs))
    tx = om.on_matrices(cubic(), placement=placement, probe=False)
    state = tx.init(params)
    _, after = jax.jit(tx.update)(params, state)
    for momenta in (state.inner_state[0].trace, after.inner_state[0].trace):
        for name, x in momenta.items():
            *_, shape, spec = stacks[name.partition("@")[0]]
            assert x.shape == shape
            assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim), name
