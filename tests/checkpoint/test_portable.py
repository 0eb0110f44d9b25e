"""Checkpoints: state by path survives renaming, regrouping, added and frozen layers."""

import flax.nnx as nnx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _matrices import ones
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from optax_matrix.checkpoint import check_restored, from_portable, to_portable
from optax_matrix.matrices.rules import by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.sharding import owners
from optax_matrix.tree import on_matrices, per_matrix


def _params(*names):
    draw = lambda i, *s: np.random.default_rng(i).standard_normal(s).astype(np.float32)
    return {n: {"kernel": draw(i, 3, 5)} for i, n in enumerate(names)}


def _tx(**kwargs):
    matrices = optax.chain(optax.trace(0.9), optax.scale_by_rms())
    # The states alone are compared: the probe would compile four programs for each.
    matrices = on_matrices(matrices, probe=False, **kwargs)
    return optax.chain(matrices, optax.scale_by_adam())


def _trained(tx, params):
    state, update = jax.jit(tx.init)(params), jax.jit(tx.update)
    for k in range(2):
        _, state = update(jax.tree.map(lambda x, k=k: x * (k + 1), params), state)
    return state


def _same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.broad
def test_round_trip_is_exact():
    params, tx = _params("a", "b", "c"), _tx()
    state = _trained(tx, params)
    _same(from_portable(to_portable(state, params), tx.init(params), params), state)


@pytest.mark.broad
def test_renamed_layer_keeps_its_momentum_under_its_new_name():
    old, new, tx = _params("a", "b", "c"), _params("a", "zz", "c"), _tx()
    portable = to_portable(_trained(tx, old), old)
    with pytest.raises(ValueError, match=r"has no state for .*zz/kernel.*rename="):
        from_portable(portable, tx.init(new), new)
    state = from_portable(portable, tx.init(new), new, rename={"b": "zz"})
    moved = to_portable(state, new)
    for place in ("0/inner_state/0/trace", "0/inner_state/1/nu", "1/mu"):
        want, got = portable[f"{place}/b/kernel"], moved[f"{place}/zz/kernel"]
        np.testing.assert_array_equal(want, got)
        assert np.abs(got).max() > 0


@pytest.mark.broad
def test_rename_swaps_layers_and_nothing_else():
    layer = lambda i: _params("w")["w"]["kernel"] + i
    tree = lambda: {
        "l": {"0": layer(1), "1": layer(2)},
        "enc": {"l": {"0": layer(3), "1": layer(4)}},
        "trace": layer(5),
    }
    params, tx = tree(), _tx()
    portable = to_portable(_trained(tx, params), params)
    swap = {"l/0": "l/1", "l/1": "l/0"}
    state = from_portable(portable, tx.init(params), params, rename=swap)
    moved = to_portable(state, params)
    for place in ("0/inner_state/0/trace", "1/mu"):
        at = lambda flat, path, place=place: flat[f"{place}/{path}"]
        np.testing.assert_array_equal(at(moved, "l/0"), at(portable, "l/1"))
        np.testing.assert_array_equal(at(moved, "l/1"), at(portable, "l/0"))
        for path in ("enc/l/0", "enc/l/1", "trace"):
            np.testing.assert_array_equal(at(moved, path), at(portable, path))


@pytest.mark.broad
def test_rename_onto_a_layer_that_exists_loses_nothing_silently():
    old, new, tx = _params("a", "b"), _params("b"), _tx()
    portable = to_portable(_trained(tx, old), old)
    with pytest.raises(ValueError, match=r"of no use.*b/kernel"):
        from_portable(portable, tx.init(new), new, rename={"a": "b"})


@pytest.mark.broad
@pytest.mark.parametrize("mode", [AxisType.Explicit, AxisType.Auto])
def test_portable_state_moves_between_meshes(cpus, mode):
    plain, tx = _params("a", "b"), _tx()
    mesh = jax.make_mesh((2,), ("x",), axis_types=(mode,), devices=cpus[:2])
    columns = NamedSharding(mesh, P(None, "x"))
    even = {n: {"kernel": jnp.ones((3, 4)) * (i + 1)} for i, n in enumerate(plain)}
    sharded = jax.tree.map(lambda x: jax.device_put(x, columns), even)
    portable = to_portable(_trained(tx, even), even)
    fresh = tx.init(sharded)
    moved = from_portable(jax.tree.map(np.asarray, portable), fresh, sharded)
    for new, old in zip(jax.tree.leaves(moved), jax.tree.leaves(fresh), strict=True):
        assert new.sharding == old.sharding
    back = from_portable(to_portable(moved, sharded), tx.init(even), even)
    _same(back, _trained(tx, even))


@pytest.mark.broad
def test_random_keys_travel():
    params = _params("a")
    tx = optax.chain(_tx(), optax.add_noise(0.1, 0.5, jax.random.key(3)))
    state = _trained(tx, params)
    back = from_portable(to_portable(state, params), tx.init(params), params)
    raw = lambda s: jax.random.key_data(s[1].rng_key)
    np.testing.assert_array_equal(raw(back), raw(state))


def test_structural_restore_of_a_renamed_layer_fails():
    """The trap: a structural restore would swap momenta, as stacks order by path."""
    old, new, tx = _params("a", "b"), _params("c", "b"), _tx()
    saved = flax.serialization.to_state_dict(_trained(tx, old))
    with pytest.raises(ValueError, match="keys"):
        flax.serialization.from_state_dict(tx.init(new), saved)


@pytest.mark.broad
def test_restore_by_position_is_caught():
    old, new, tx = _params("a", "b"), _params("c", "b"), _tx()
    leaves = jax.tree.leaves(_trained(tx, old))
    swapped = jax.tree.unflatten(jax.tree.structure(tx.init(new)), leaves)
    with pytest.raises(ValueError, match="but holds others"):
        check_restored(swapped)
    check_restored(_trained(tx, old))


def test_other_max_batch():
    params = _params("a", "b", "c")
    few, many = _tx(max_batch=1), _tx()
    portable = to_portable(_trained(few, params), params)
    state = from_portable(portable, many.init(params), params)
    _same(state, _trained(many, params))


def test_added_and_frozen_layers():
    small, large, tx = _params("a", "b"), _params("a", "b", "c"), _tx()
    portable = to_portable(_trained(tx, small), small)
    state = from_portable(portable, tx.init(large), large, missing="init")
    rows = to_portable(state, large)
    np.testing.assert_array_equal(
        rows["0/inner_state/0/trace/a/kernel"],
        portable["0/inner_state/0/trace/a/kernel"],
    )
    assert np.abs(rows["0/inner_state/0/trace/c/kernel"]).max() == 0
    with pytest.raises(ValueError, match=r"holds state of no use.*unused='drop'"):
        from_portable(rows, tx.init(small), small)
    back = from_portable(rows, tx.init(small), small, unused="drop")
    _same(back, _trained(tx, small))


def test_other_shape_is_refused():
    old, tx = _params("a"), _tx()
    new = {"a": {"kernel": ones(3, 6)}}
    with pytest.raises(ValueError, match=r"shape \(1, 6, 3\) .* got \(1, 5, 3\)"):
        from_portable(to_portable(tx.init(old), old), tx.init(new), new)


def test_state_of_unknown_parameters_is_refused():
    params, tx = _params("a", "b"), _tx()
    with pytest.raises(ValueError, match="`params` must be the parameters"):
        to_portable(tx.init(params), _params("a"))


@pytest.mark.broad
def test_sections_of_one_leaf_in_several_stacks():
    params = {"qkv": _params("x")["x"]["kernel"], "up": jnp.ones((3, 2))}
    rule = by_path(numbers={"qkv": MatrixDimensionNumbers(output_sections=(1, 2, 2))})
    tx = on_matrices(optax.trace(0.9), dimension_numbers=rule)
    _, state = tx.update(params, tx.init(params))
    portable, place = to_portable(state, params), "inner_state/trace"
    shapes = {
        key.removeprefix(f"{place}/"): value.shape
        for key, value in portable.items()
        if key.startswith(f"{place}/")
    }
    assert shapes == {
        "qkv": (1, 1, 3),
        "qkv#1": (1, 2, 3),
        "qkv#2": (1, 2, 3),
        "up": (1, 2, 3),
    }
    _same(from_portable(portable, tx.init(params), params), state)


@pytest.mark.broad
def test_per_matrix_counts_travel_with_their_matrix():
    params = _params("a", "b")
    tx = on_matrices(per_matrix(optax.scale_by_adam()))
    _, state = jax.jit(tx.update)(params, tx.init(params))
    portable = to_portable(state, params)
    assert portable["inner_state/count/a/kernel"].shape == (1,)
    _same(from_portable(portable, tx.init(params), params), state)


@pytest.mark.slow
def test_nnx_optimizer_state():
    model = nnx.Linear(3, 5, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, _tx(), wrt=nnx.Param)
    grads = nnx.grad(lambda m: (m(jnp.ones((1, 3))) ** 2).sum())(model)
    optimizer.update(model, grads)
    params = nnx.state(model, nnx.Param)
    portable = to_portable(optimizer.opt_state, params)
    fresh = nnx.Optimizer(model, _tx(), wrt=nnx.Param)
    fresh.opt_state = from_portable(portable, fresh.opt_state, params)
    _same(
        nnx.to_pure_dict(nnx.state(fresh.opt_state)),
        nnx.to_pure_dict(nnx.state(optimizer.opt_state)),
    )


@pytest.mark.broad
def test_orbax_round_trip_and_renamed_target(tmp_path):
    old, new, tx = _params("a", "b"), _params("c", "b"), _tx()
    state = _trained(tx, old)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        _same(checkpointer.restore(tmp_path / "state", tx.init(old)), state)
        with pytest.raises(ValueError, match="@"):
            checkpointer.restore(tmp_path / "state", tx.init(new))


@pytest.mark.broad
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_filled_state_goes_on_where_the_parameters_lie(cpus, kind):
    """Adam's count was free to move before, and must be after."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2, devices=cpus)
    on = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    params = {"kernel": on(jnp.ones((8, 4)), "x", "y"), "bias": on(jnp.ones(4), "y")}
    placement = owners.from_params(params, ("x", "y"))
    tx = optax.chain(
        on_matrices(optax.trace(0.9), placement=placement), optax.adam(1.0)
    )
    update = jax.jit(tx.update)
    _, state = update(params, tx.init(params), params)
    want, _ = update(params, state, params)
    portable = to_portable(state, params)
    filled = from_portable(portable, tx.init(params), params)
    got, _ = update(params, filled, params)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_restored_replicated_state_is_brought_home(cpus):
    mesh = jax.make_mesh((4, 2), ("x", "y"), (AxisType.Explicit,) * 2, devices=cpus)
    kernel = jax.device_put(ones(8, 4), NamedSharding(mesh, P("x", "y")))
    tx = on_matrices(optax.trace(0.9), placement=owners(("x", "y")))
    state = tx.init({"kernel": kernel})
    replicated = jax.device_put(state, NamedSharding(mesh, P()))
    update = jax.jit(tx.update)
    with pytest.warns(UserWarning, match="whole on every device"):
        update({"kernel": kernel}, replicated)
    for restored in (replicated, jax.tree.map(np.asarray, state)):
        _, new = update({"kernel": kernel}, restored)
        assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, state)


def test_shapes_cannot_be_filled():
    params, tx = _params("a"), _tx()
    state = tx.init(params)
    with pytest.raises(ValueError, match=r"`state` must hold values, got shapes"):
        from_portable(
            to_portable(state, params), jax.eval_shape(tx.init, params), params
        )
