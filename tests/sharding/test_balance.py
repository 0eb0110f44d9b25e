"""The work of the busiest owner: who gets what is left over, and padding is skipped."""

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
from optax_matrix._surroundings.kernels import on_real_matrices
from optax_matrix._thresholds import Thresholds
from optax_matrix.matrices.decisions import decide, views_of
from optax_matrix.sharding._balance import loads, operations, with_teams, work_of
from optax_matrix.sharding._owner_layout import owner_layout
from optax_matrix.sharding._ownership import Ownership


def _work(own):
    return work_of(own.matrix)


def _busiest(model, fsdp, tp):
    """Work of the busiest owner over the even split, with padding and without."""
    leaves = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, (s, _) in model.items()}
    specs = {path: spec for path, (_, spec) in model.items()}
    mesh = AbstractMesh((fsdp, tp), ("fsdp", "tp"))
    layout = owner_layout(leaves, views_of(decide(leaves)), specs, ("fsdp", "tp"), mesh)
    found = [bundle.ownership for bundle in layout.bundles]
    even = sum(_work(own) * own.matrices for own in found) / mesh.size
    padded = sum(_work(own) * own.matrices_per_owner for own in found)
    real = sum(_work(own) * (own.table >= 0).sum(axis=1) for own in found)
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
    assert operations(3, 5) == operations(5, 3) == 2 * (2 * 3 * 3 * 5 + 3 * 3 * 3)


def _on_eight(rows, matrices, **options):
    view = decide({"w": np.zeros((8, rows), np.float32)})["w"].view
    return Ownership(view, ((), ()), ("x",), {"x": 8}, matrices, **options)


def test_left_over_matrices_go_to_owners_that_have_least():
    given = [_on_eight(16, 3), _on_eight(32, 4), _on_eight(8, 12)]
    found = with_teams(given, 1)
    load = sum(_work(own) * (own.table >= 0).sum(axis=1) for own in found)
    _, large, small = map(_work, found)
    assert load.max() == large + small
    assert found[1].offset == 0  # The largest first.
    assert found[0].offset == 4  # Beside it.


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_loads_are_what_the_tables_of_owners_come_to(size):
    found = with_teams([_on_eight(16, 3), _on_eight(32, 13), _on_eight(8, 9)], size)
    total, work, sent = loads(found), np.zeros(8), np.zeros(8)
    for own in found:
        whole, last = own.table[:, :-1] >= 0, own.table[:, -1] >= 0
        of_team = np.repeat(last.reshape(-1, size).sum(axis=1), size)
        m, n = own.sides
        part = (size - 1) / size
        work += _work(own) * (whole.sum(axis=1) + of_team / size)
        sent += part * 5 * m * m * (4 + 2 + 2) * of_team
        sent += part * 2 * m * n * 2 * (of_team > 0)
    assert [own.team_size for own in found] == [size] * 3
    np.testing.assert_array_equal(total.work, work)
    np.testing.assert_array_equal(total.sent, sent)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("offset", [0, 1, 6])
@pytest.mark.parametrize("count", [1, 8, 13, 16, 23])
def test_the_order_of_owners_is_inverted(count, offset, size):
    own = _on_eight(2, count, team_size=size, offset=offset)
    matrices = np.arange(1.0, 1 + count * 6).reshape(count, 3, 2)
    moved = own.by_owner(matrices)
    assert own.table.shape == (8, math.ceil(count / 8))
    padded = np.concatenate([matrices, np.zeros((1, 3, 2))])
    np.testing.assert_array_equal(moved, padded[own.table.ravel()])
    np.testing.assert_array_equal(own.in_order(jnp.asarray(moved)), matrices)
    np.testing.assert_array_equal(own.is_real, own.table >= 0)
    held = own.is_real.sum(axis=1)
    assert held.max() - held.min() <= 1
    in_teams = held.reshape(-1, size).sum(axis=1)
    assert in_teams.max() - in_teams.min() <= 1
    if count % 8:
        assert in_teams[offset % len(in_teams)] == in_teams.max()


@pytest.mark.broad
def test_only_stacks_as_they_are_skip_padding():
    real, twice = jnp.array([True, False, True]), lambda x: 2 * x
    stacks = {"a": jnp.ones((3, 2, 2)), "b": jnp.ones((3, 2, 2))}
    with within(real={"a": real}):
        out = on_real_matrices(twice, stacks)
        joined = on_real_matrices(twice, {"a": jnp.ones((6, 2, 2))})
    np.testing.assert_array_equal(out["a"][:, 0, 0], [2, 0, 2])
    np.testing.assert_array_equal(out["b"], 2 * stacks["b"])
    assert (joined["a"] == 2).all()


@pytest.mark.daily("auto")
@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_not_computed(kind, cpus, monkeypatch):
    """Eleven matrices on eight owners: eleven calls of the kernel, and not sixteen."""
    monkeypatch.setattr(Thresholds, "busy_side", 4)
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
