"""The cost of a step, from shapes and specs alone."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.sharding import plan

MESH = AbstractMesh((4, 2), ("fsdp", "tp"))
SHAPES = {f"up_{i}": (8, 16) for i in range(3)} | {"bias": (16,)}
PARAMS = {path: jax.ShapeDtypeStruct(s, jnp.float32) for path, s in SHAPES.items()}
SPECS = {p: P("fsdp", "tp") if len(s) > 1 else P("tp") for p, s in SHAPES.items()}
SHARDINGS = {path: NamedSharding(MESH, spec) for path, spec in SPECS.items()}


def _plan(axes, **options):
    placement = om.owners(axes, param_specs=SHARDINGS, **options)
    return plan(om.muon(0.1, placement=placement), PARAMS, SHARDINGS)


def test_three_matrices_on_eight_owners():
    found = _plan(("fsdp", "tp"))
    (group,) = found.groups
    counts = group.matrices, group.owners, group.chips, group.held
    assert counts == (3, 3, 8, 1)
    assert found.work == pytest.approx(8 / 3)
    # Eight parts of 8 x 16 / 8 numbers, seven of which go elsewhere, there and back.
    assert found.sent == group.sent == 2 * 7 * 16 * 4
    assert found.stack_bytes == 8 * 16 * 4
    momentum, count, manifest = 8 * 16 * 4, 4, 4 * 4
    adam = 2 * 16 * 4 // 2
    assert (
        momentum + adam < found.state_bytes < momentum + adam + 20 * (count + manifest)
    )
    # Two owners, each with four devices on one matrix: one of them has two.
    assert dict(found.others)[("tp",)] == pytest.approx((2 / 4) / (3 / 8))


def test_bytes_follow_the_dtype_of_the_wire():
    half = _plan(("fsdp", "tp"), wire_dtype=jnp.bfloat16)
    assert 2 * half.sent == _plan(("fsdp", "tp")).sent


def test_axes_inside_matrices_share_the_work_and_compute_padding():
    found = _plan("fsdp")
    (group,) = found.groups
    assert (group.owners, group.chips, group.held) == (3, 8, 1)
    assert found.work == pytest.approx((1 / 2) / (3 / 8))


def test_what_would_be_better_is_printed():
    text = str(_plan(("fsdp", "tp")))
    assert "busiest of 8 devices: 2.67x an even split" in text
    assert "owners(('tp',)): 1.33x" in text
    assert "better" not in text
    assert "owners(('fsdp', 'tp'))" not in text


def test_without_owners():
    found = plan(om.muon(0.1), PARAMS, SHARDINGS)
    assert (found.kept, found.groups, found.others) == (3, (), ())
    assert "3 matrices stay where they are" in str(found)
