"""Gathering an array in pieces, on the devices of one process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from examples.study.benchmarks._hlo import collectives
from optax_matrix.checkpoint import gathering

SPECS = [
    P("a"),
    P("b"),
    P(("a", "b")),
    P(("b", "a")),
    P(None, "b", "a"),
    P("b", None, "a"),
    P(None, ("b", "a")),
]


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=str)
def mesh(cpus, request):
    return jax.make_mesh((4, 2), ("a", "b"), (request.param,) * 2, devices=cpus)


@pytest.mark.quick(
    "AxisType.Auto-P('b',)-float32", "AxisType.Explicit-P(('b', 'a'),)-bfloat16"
)
@pytest.mark.daily("float32", "AxisType.Explicit-P(('b', 'a'),)")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint32"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_entry_arrives(mesh, spec, dtype):
    shape = 8, 16, 40
    x = np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    for limit in (1, 3000, 2**28):
        got = gathering.gathered(placed, limit)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, x)


def test_offloaded_arrays_arrive(mesh):
    x = np.arange(64.0).reshape(8, 8)
    sharding = NamedSharding(mesh, P("a"), memory_kind="pinned_host")
    np.testing.assert_array_equal(gathering.gathered(jax.device_put(x, sharding)), x)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_no_device_gets_more_than_a_piece(mesh, spec):
    sharding = NamedSharding(mesh, spec)
    limit, shape = 20_000, (8, 16, 40)
    plan = gathering.pieces(shape, jnp.float32, sharding, limit)
    assert plan.nbytes <= limit
    starts = list(plan.starts())
    assert len(starts) == -(-plan.length // plan.rows)
    assert len(starts) * plan.nbytes >= 8 * 16 * 40 * 4
    x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    program = gathering._sent.lower(x, 0, plan.axis, plan.rows, sharding).compile()
    found = collectives(program.as_text())
    assert set(found) == {"all-gather"}
    assert found["all-gather"].bytes == plan.nbytes


def test_what_one_process_holds_is_read_as_it_is(mesh, monkeypatch):
    monkeypatch.setattr(gathering, "gathered", None)
    x = jax.device_put(np.ones((8, 4)), NamedSharding(mesh, P("a")))
    np.testing.assert_array_equal(gathering.on_host(x), np.ones((8, 4)))
    np.testing.assert_array_equal(gathering.on_host([1, 2]), [1, 2])
