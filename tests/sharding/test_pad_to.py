"""State of one shape on every mesh: `owners(pad_to=...)`."""

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _owned import assert_same_path, cubic, given, normal, on_mesh
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.stacks.identities import FILLER

AXES = ("fsdp", "tp")
MESHES = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (4, 2), (8, 1), (2, 4)]
# Five leaves are split on both sides, two along "fsdp" alone and replicated along "tp".
SHAPES = {f"a/{i}": (8, 16) for i in range(5)} | {f"b/{i}": (8, 8) for i in range(2)}
SPECS = {path: P(*AXES) if path[0] == "a" else P("fsdp") for path in SHAPES}


def _setting(cpus, shape, kind=AxisType.Explicit, **kwargs):
    size = shape[0] * shape[1]
    mesh = jax.make_mesh(shape, AXES, (kind,) * 2, devices=cpus[:size])
    options = {"pad_to": 8, "param_specs": given(mesh, SPECS), **kwargs}
    placement = om.owners(AXES, **options)
    tx = om.on_matrices(cubic, placement=placement, probe=False)
    return mesh, tx, on_mesh(normal(SHAPES, 0), SPECS, mesh)


@pytest.mark.broad
def test_state_is_the_same_on_every_mesh(cpus):
    states = {}
    for shape in MESHES:
        _, tx, params = _setting(cpus, shape)
        _, state = jax.jit(tx.update)(params, tx.init(params), params)
        states[shape] = jax.tree.map(np.asarray, state)
    first = states[1, 1]
    assert sorted(x.shape for x in jax.tree.leaves(first) if x.ndim == 3) == [
        (8, 8, 8),
        (8, 16, 8),
    ]
    for state in states.values():
        assert jax.tree.structure(state) == jax.tree.structure(first)
        jax.tree.map(np.testing.assert_array_equal, state.manifest, first.manifest)
        for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(first), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.broad
def test_order_is_that_of_the_leaves_with_fillers_last(cpus):
    _, tx, params = _setting(cpus, (2, 4))
    state = tx.init(params)
    for rows in map(np.asarray, state.manifest.values()):
        filler = np.all(rows[:, :2] == FILLER, axis=1)
        assert list(filler) == sorted(filler)
    momenta = jax.jit(tx.update)(params, state, params)[1].inner_state[0].trace
    for stack in momenta.values():
        name = "a" if stack.shape[1:] == (16, 8) else "b"
        leaves = [np.asarray(x).T for p, x in params.items() if p[0] == name]
        np.testing.assert_array_equal(np.asarray(stack)[: len(leaves)], leaves)


@pytest.mark.broad
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_training_goes_on_after_a_restore_on_another_mesh(cpus, tmp_path, kind):
    def step(tx, params, state):
        updates, state = jax.jit(tx.update)(params, state, params)
        return optax.apply_updates(params, updates), state

    mesh, tx, params = _setting(cpus, (4, 2), kind)
    params, state = step(tx, params, tx.init(params))
    want, _ = step(tx, params, state)
    with ocp.StandardCheckpointer() as checkpoints:
        checkpoints.save(tmp_path / "state", state)
        checkpoints.wait_until_finished()
        for shape in [(1, 1), (2, 1), (2, 2), (8, 1)]:
            mesh, tx, _ = _setting(cpus, shape, kind)
            moved = on_mesh(jax.tree.map(np.asarray, params), SPECS, mesh)
            target = jax.tree.map(
                lambda x, spec, mesh=mesh: jax.ShapeDtypeStruct(
                    x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
                ),
                jax.eval_shape(tx.init, moved),
                om.state_specs(tx, moved),
            )
            restored = checkpoints.restore(tmp_path / "state", target)
            om.check_restored(restored)
            got, _ = step(tx, moved, restored)
            assert_same_path([got], [want], rtol=1e-6, atol=1e-6)


def test_the_owners_must_divide_it(cpus):
    _, tx, params = _setting(cpus, (4, 2), pad_to=12)
    with pytest.raises(ValueError, match=r"`pad_to` must be a multiple of the 8"):
        tx.init(params)
    for wrong in (0, -1, 2.0, True, "8"):
        with pytest.raises(ValueError, match=r"`pad_to` must be a positive int"):
            om.owners(AXES, pad_to=wrong)


@pytest.mark.parametrize("layers", [8, 12])
def test_a_sharded_batch_is_kept_or_refused(cpus, layers):
    states = []
    for size in (1, 2, 4):
        mesh = jax.make_mesh(
            (size,), ("fsdp",), (AxisType.Explicit,), devices=cpus[:size]
        )
        specs = {"a": P("fsdp"), "b": P("fsdp")}
        params = on_mesh(normal(dict.fromkeys("ab", (layers, 4, 6)), 0), specs, mesh)
        placement = om.owners("fsdp", pad_to=8)
        tx = om.on_matrices(cubic, placement=placement, probe=False)
        if layers == 12:
            with pytest.raises(ValueError, match=r"`pad_to` must divide the matrices"):
                tx.init(params)
            continue
        _, state = jax.jit(tx.update)(params, tx.init(params), params)
        states.append(jax.tree.map(np.asarray, state))
    for state in states[1:]:
        jax.tree.map(np.testing.assert_array_equal, state.manifest, states[0].manifest)


@pytest.mark.broad
def test_sections_of_a_matrix_stay_together(cpus):
    numbers = om.MatrixDimensionNumbers(output_sections=(8, 8, 4))
    names = []
    for size in (1, 4, 8):
        mesh = jax.make_mesh(
            (size,), ("fsdp",), (AxisType.Explicit,), devices=cpus[:size]
        )
        params = on_mesh(
            normal(dict.fromkeys("abc", (8, 20)), 0),
            dict.fromkeys("abc", P("fsdp")),
            mesh,
        )
        tx = om.on_matrices(
            optax.trace(0.9),
            placement=om.owners("fsdp", pad_to=8),
            dimension_numbers=dict.fromkeys("abc", numbers),
        )
        state = tx.init(params)
        updates, _ = jax.jit(tx.update)(params, state, params)
        for path, x in params.items():
            np.testing.assert_array_equal(updates[path], x)
        names.append(sorted(state.manifest))
    assert names[0] == names[1] == names[2]


def test_bare_specs_without_a_mesh_say_which_ways_there_are(cpus):
    shapes = {p: jax.ShapeDtypeStruct(s, np.float32) for p, s in SHAPES.items()}
    tx = om.muon(1e-2, placement=om.owners(AXES, param_specs=SPECS))
    with pytest.raises(ValueError, match=r"Either .* jax.set_mesh.* NamedSharding"):
        jax.eval_shape(tx.init, shapes)
    mesh = jax.make_mesh((4, 2), AXES, (AxisType.Auto,) * 2, devices=cpus)
    with jax.set_mesh(mesh):
        first = jax.eval_shape(tx.init, shapes)
    shardings = {path: NamedSharding(mesh, spec) for path, spec in SPECS.items()}
    tx = om.muon(1e-2, placement=om.owners(AXES, param_specs=shardings))
    second = jax.eval_shape(tx.init, shapes)
    shape = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert shape(first) == shape(second)
