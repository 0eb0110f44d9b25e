"""Pipeline stages on meshes of their own, and expert parallelism inside of a stage."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES = {"kernel": (8, 4), "experts": (4, 6, 8)}
SPECS = {"kernel": P("expert"), "experts": P("expert", None, "fsdp")}


def stages(devices, kind):
    rng = np.random.default_rng(0)
    types, trees, meshes = (kind,) * 2, {}, {}
    for i, part in enumerate((devices[:4], devices[4:])):
        grid = np.array(part).reshape(2, 2)
        mesh = meshes[f"stage{i}"] = Mesh(grid, ("expert", "fsdp"), axis_types=types)
        trees[f"stage{i}"] = {
            name: jax.device_put(
                np.float32(rng.standard_normal(shape)), NamedSharding(mesh, SPECS[name])
            )
            for name, shape in SHAPES.items()
        }
    return trees, meshes


@pytest.mark.daily("AxisType.Explicit")
@pytest.mark.broad
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("owned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_optimizer_for_each_stage(kind, owned, cpus):
    params, meshes = stages(cpus, kind)
    for name, tree in params.items():
        place = om.owners(("expert", "fsdp"), param_specs=SPECS) if owned else None
        tx, plain = om.scale_by_swan(placement=place), om.scale_by_swan()
        local = jax.tree.map(np.asarray, tree)
        expected = jax.jit(plain.update)(local, plain.init(local))[0]
        with jax.set_mesh(meshes[name]):
            state = jax.jit(tx.init)(tree)
            update = jax.jit(tx.update)(tree, state)[0]
        for path, x in update.items():
            assert x.sharding.device_set == tree[path].sharding.device_set
            np.testing.assert_allclose(x, expected[path], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_one_optimizer_on_two_meshes_is_refused(kind, cpus):
    params, _ = stages(cpus, kind)
    with pytest.raises(ValueError, match=r"one mesh, but 'stage0/.*' is .* 'stage1/.*"):
        om.scale_by_swan().init(params)


@pytest.mark.slow
@pytest.mark.parametrize("owned", [False, True])
def test_one_optimizer_for_each_mesh_by_partition(owned, cpus):
    """The remedy that the refusal names: each update runs on the mesh of its stage."""
    params, _ = stages(cpus, AxisType.Explicit)
    labels = {stage: dict.fromkeys(tree, stage) for stage, tree in params.items()}
    make = lambda: om.scale_by_swan(
        dimension_numbers=om.matrices.by_path()(params),
        placement=om.owners(("expert", "fsdp")) if owned else None,
    )
    tx, plain = optax.partition({s: make() for s in params}, labels), om.scale_by_swan()
    update = tx.update(params, tx.init(params), params)[0]
    local = jax.tree.map(np.asarray, params)
    expected = plain.update(local, plain.init(local))[0]
    for stage, tree in expected.items():
        for path, x in tree.items():
            found = update[stage][path]
            np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)
            assert found.sharding.device_set == params[stage][path].sharding.device_set
