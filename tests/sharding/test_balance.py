"""The work of the busiest owner: who gets what is left over, and padding is skipped."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _llama import llama
from _meshes import KINDS, make_mesh
from _owned import given, normal, on_mesh
from jax.sharding import AbstractMesh, PartitionSpec as P

import optax_matrix as om
from optax_matrix._surroundings import within
from optax_matrix._surroundings.padding import on_real_matrices
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.sharding import _owner_layout
from optax_matrix.sharding._balance import balance, work, work_of
from optax_matrix.sharding._cost_model import CostModel
from optax_matrix.sharding._exchange import Exchange
from optax_matrix.sharding._loads import busiest, sent_in_teams
from optax_matrix.sharding._owner_layout import owner_layout


def _busiest(model, fsdp, tp):
    """Work of the busiest owner over the even split, with padding and without."""
    leaves = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, (s, _) in model.items()}
    specs = {path: spec for path, (_, spec) in model.items()}
    mesh = AbstractMesh((fsdp, tp), ("fsdp", "tp"))
    layout = owner_layout(leaves, views_of(decide(leaves)), specs, ("fsdp", "tp"), mesh)
    exchanges = [bundle.exchange for bundle in layout.bundles]
    even = sum(work_of(e) * e.held for e in exchanges) / mesh.size
    padded = sum(work_of(e) * e.owned for e in exchanges)
    real = sum(work_of(e) * (e.owned_by() >= 0).sum(axis=1) for e in exchanges)
    return padded / even, real.max() / even


@pytest.mark.parametrize(
    ("model", "mesh", "padded", "real"),
    [
        ((32, 4096, 16384, 4096), (16, 4), 1.38, 1.08),
        ((32, 4096, 16384, 4096), (64, 4), 4.92, 1.85),
        ((80, 8192, 28672, 1024), (32, 4), 1.60, 1.17),
        ((80, 8192, 28672, 1024), (256, 4), 9.38, 3.41),
    ],
    ids=["8.6B on 64", "8.6B on 256", "70B on 128", "70B on 1024"],
)
def test_work_of_the_busiest_owner(model, mesh, padded, real):
    found = _busiest(llama(*model), *mesh)
    assert found == pytest.approx((padded, real), abs=0.005)


def test_work_is_that_of_newton_schulz():
    """Two products with the long side and one of short sides, two operations each."""
    assert work(3, 5) == work(5, 3) == 2 * (2 * 3 * 3 * 5 + 3 * 3 * 3)


def test_left_over_matrices_go_to_owners_that_have_least():
    view = lambda rows: decide({"w": jnp.zeros((8, rows))})["w"].view
    exchange = lambda rows, count: Exchange(
        view(rows), ((), ()), ("x",), {"x": 8}, count
    )
    few, large, small = exchange(16, 3), exchange(32, 4), exchange(8, 12)
    starts = balance([few, large, small], CostModel()).starts
    load = sum(
        work_of(e) * (np.roll(np.arange(8) < e.left_over, start) + e.held // 8)
        for e, start in zip([few, large, small], starts, strict=True)
    )
    assert load.max() == work_of(large) + work_of(small)
    assert starts[1] == 0  # The largest first.
    assert starts[0] == 4  # Beside it.


@pytest.mark.parametrize("chips", [1, 2, 4])
def test_the_balance_is_what_the_tables_of_owners_come_to(chips):
    view = lambda rows: decide({"w": jnp.zeros((8, rows))})["w"].view
    shapes, model = [(16, 3), (32, 13), (8, 9)], CostModel()
    exchanges = [
        Exchange(view(rows), ((), ()), ("x",), {"x": 8}, count, chips=chips)
        for rows, count in shapes
    ]
    found = balance(exchanges, model)
    placed = [
        dataclasses.replace(exchange, start=start)
        for exchange, start in zip(exchanges, found.starts, strict=True)
    ]
    even = sum(work_of(e) * e.count for e in placed) / 8
    assert busiest(placed) == pytest.approx(found.work.max() / even, rel=1e-3)
    assert sent_in_teams(placed, model) == found.sent.max()


@pytest.mark.parametrize("chips", [1, 2, 4, 8])
@pytest.mark.parametrize("start", [0, 1, 6])
@pytest.mark.parametrize("count", [1, 8, 13, 16, 23])
def test_the_order_of_owners_is_inverted(count, start, chips):
    view = decide({"w": jnp.zeros((2, 3))})["w"].view
    sizes = {"x": 8}
    exchange = Exchange(view, ((), ()), ("x",), sizes, count, chips=chips, start=start)
    matrices = np.arange(1.0, 1 + count * 6).reshape(count, 3, 2)
    moved = exchange._by_owner(matrices)
    numbers = exchange.owned_by()
    assert numbers.shape == (8, math.ceil(count / 8))
    padded = np.concatenate([matrices, np.zeros((1, 3, 2))])
    np.testing.assert_array_equal(moved, padded[numbers.ravel()])
    np.testing.assert_array_equal(exchange._in_order(jnp.asarray(moved)), matrices)
    held = (numbers >= 0).sum(axis=1)
    assert held.max() - held.min() <= 1
    in_teams = held.reshape(-1, chips).sum(axis=1)
    assert in_teams.max() - in_teams.min() <= 1
    if count % 8:
        assert in_teams[start % len(in_teams)] == in_teams.max()


def test_only_stacks_as_they_are_skip_padding():
    real, twice = jnp.array([True, False, True]), lambda x: 2 * x
    stacks = {"a": jnp.ones((3, 2, 2)), "b": jnp.ones((3, 2, 2))}
    with within(real={"a": real}):
        out = on_real_matrices(twice, stacks)
        joined = on_real_matrices(twice, {"a": jnp.ones((6, 2, 2))})
    np.testing.assert_array_equal(out["a"][:, 0, 0], [2, 0, 2])
    np.testing.assert_array_equal(out["b"], 2 * stacks["b"])
    assert (joined["a"] == 2).all()


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_not_computed(kind, cpus, monkeypatch):
    """Eleven matrices on eight owners: eleven calls of the kernel, and not sixteen."""
    monkeypatch.setattr(_owner_layout, "LARGE", 4)
    mesh = make_mesh("fsdp4-tp2", kind, cpus)
    shapes = {f"up/{i}": (8, 16) for i in range(11)}
    specs = dict.fromkeys(shapes, P("fsdp", "tp"))
    calls = []

    def counted(x):
        jax.debug.callback(lambda: calls.append(1))
        return om.linalg.polar_svd(x)

    make = lambda **options: om.on_matrices(
        om.orthogonalize(counted), probe=False, **options
    )
    grads = normal(shapes, 0)
    want, _ = make().update(grads, make().init(grads))
    tx = make(placement=om.owners(("fsdp", "tp"), param_specs=given(mesh, specs)))
    sharded = on_mesh(grads, specs, mesh)
    state = tx.init(sharded)
    jax.effects_barrier()
    calls.clear()
    got, _ = jax.block_until_ready(jax.jit(tx.update)(sharded, state))
    jax.effects_barrier()
    assert len(calls) == 11
    for path in shapes:
        np.testing.assert_allclose(got[path], want[path], atol=1e-6)
