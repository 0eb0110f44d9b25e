"""What `from_portable` refuses, because it would lose or mistake state quietly."""

import io

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from _matrices import ones
from _steps import first_update
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.checkpoint import check_restored, from_portable, to_portable
from optax_matrix.matrices.view import MatrixDimensionNumbers as Numbers
from optax_matrix.tree import on_matrices


def _params(*names, shape=(3, 5)):
    draw = lambda i: np.random.default_rng(i).standard_normal(shape).astype(np.float32)
    return {n: {"kernel": draw(i)} for i, n in enumerate(names)}


def _tx(numbers=None, dtype=None, **kwargs):
    momentum = optax.trace(0.9, accumulator_dtype=dtype)
    # The states alone matter: the probe would compile four programs for each of them.
    matrices = on_matrices(momentum, dimension_numbers=numbers, probe=False, **kwargs)
    return optax.chain(matrices, optax.scale_by_adam(mu_dtype=dtype))


def _trained(tx, params):
    return first_update(tx, params, params)[1]


def _trace(state, params, path):
    return np.asarray(to_portable(state, params)[f"0/inner_state/trace/{path}"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "Init"}, r"`missing` must be one of 'error', 'init'; got 'Init'"),
        ({"missing": None}, "`missing` must be one of"),
        ({"unused": "drpo"}, r"`unused` must be one of 'error', 'drop'; got 'drpo'"),
        ({"unused": True}, "`unused` must be one of"),
    ],
)
def test_misspelled_words_are_refused(options, message):
    params, tx = _params("a"), _tx()
    with pytest.raises(ValueError, match=message):
        from_portable({}, tx.init(params), params, **options)


@pytest.mark.broad
def test_a_new_layer_of_an_old_name_does_not_get_the_moved_momentum():
    old, new, tx = _params("a"), _params("a", "b"), _tx()
    portable = to_portable(_trained(tx, old), old)
    rename = {"a": "b"}
    with pytest.raises(ValueError, match=r"has no state for .*trace/a/kernel"):
        from_portable(portable, tx.init(new), new, rename=rename)
    state = from_portable(portable, tx.init(new), new, rename=rename, missing="init")
    np.testing.assert_array_equal(_trace(state, new, "a/kernel"), 0)
    got = _trace(state, new, "b/kernel")
    np.testing.assert_array_equal(got, _trace(_trained(tx, old), old, "a/kernel"))


def test_the_longest_name_of_a_renaming_counts():
    """`enc/0` moves by itself; the rest of `enc` moves to `encoder`."""
    leaf = lambda i: _params("x", shape=(3, 5))["x"]["kernel"] + i
    old = {"enc": {"0": leaf(0), "1": leaf(1)}}
    new = {"encoder": {"1": leaf(1)}, "first": leaf(0)}
    tx = _tx()
    portable = to_portable(_trained(tx, old), old)
    for rename in (
        {"enc": "encoder", "enc/0": "first"},
        {"enc/0": "first", "enc": "encoder"},
    ):
        state = from_portable(portable, tx.init(new), new, rename=rename)
        np.testing.assert_array_equal(_trace(state, new, "first")[0].T, leaf(0))
        np.testing.assert_array_equal(_trace(state, new, "encoder/1")[0].T, leaf(1))


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"b": "c", "tpyo": "a"}, r"`rename` .* 'tpyo', which `portable` does not"),
        ({"b": "tpyo"}, r"`rename` .* 'tpyo', which `params` do not"),
    ],
)
def test_a_renaming_that_concerns_nothing_is_refused(rename, message):
    old, new, tx = _params("a", "b"), _params("a", "c"), _tx()
    portable = to_portable(_trained(tx, old), old)
    loose = {"missing": "init", "unused": "drop"}
    with pytest.raises(ValueError, match=message):
        from_portable(portable, tx.init(new), new, rename=rename, **loose)


@pytest.mark.quick("float32")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_savez_and_back(dtype):
    """NumPy saves what it does not know, such as bfloat16, as bytes without a dtype."""
    params, dtype = _params("a", "b"), jnp.dtype(dtype)
    tx = _tx(dtype=dtype)
    state = _trained(tx, params)
    file = io.BytesIO()
    np.savez(file, **to_portable(state, params))
    file.seek(0)
    with np.load(file) as portable:
        filled = from_portable(portable, tx.init(params), params)
    assert filled[0].inner_state.trace[next(iter(state[0].manifest))].dtype == dtype
    jax.tree.map(np.testing.assert_array_equal, filled, state)


def test_bfloat16_of_savez_goes_into_float32():
    params = _params("a")
    half, full = _tx(dtype=jnp.bfloat16), _tx()
    state = _trained(half, params)
    file = io.BytesIO()
    np.savez(file, **to_portable(state, params))
    file.seek(0)
    with np.load(file) as portable:
        filled = from_portable(portable, full.init(params), params)
    want = np.asarray(_trace(state, params, "a/kernel"), np.float32)
    np.testing.assert_array_equal(_trace(filled, params, "a/kernel"), want)


def test_bytes_of_an_unknown_dtype_are_refused():
    params, tx = _params("a"), _tx(dtype=jnp.bfloat16)
    portable = to_portable(tx.init(params), params)
    key = "0/inner_state/trace/a/kernel"
    portable[key] = np.zeros((1, 5, 3), ml_dtypes.float8_e4m3fn).view("V1")
    with pytest.raises(ValueError, match=rf"`portable` .* got V1 bytes .*{key}"):
        from_portable(portable, tx.init(params), params)


SQUARE = {"w": np.arange(16, dtype=np.float32).reshape(4, 4), "up": ones(4, 6)}
HEADS = {"w": np.arange(32, dtype=np.float32).reshape(4, 2, 4), "up": ones(4, 6)}
MERGED = {"w": np.arange(16, dtype=np.float32).reshape(2, 2, 4), "up": ones(4, 6)}
CHANGES = {
    "orientation": (SQUARE, Numbers(0, 1), Numbers(1, 0)),
    "heads": (HEADS, Numbers(0, (1, 2)), Numbers(0, (2, 1))),
    "merged": (MERGED, Numbers((0, 1), 2), Numbers(2, (0, 1))),
}


def _rule(numbers):
    return {"w": numbers, "up": Numbers(0, 1)}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.broad
def test_another_orientation_or_order_of_heads_is_refused(name):
    params, before, after = CHANGES[name]
    old, new = _tx(_rule(before)), _tx(_rule(after))
    state = _trained(old, params)
    portable = to_portable(state, params)
    with pytest.raises(ValueError, match=r"`portable` .* other axes of 'w'"):
        from_portable(portable, new.init(params), params, missing="init", unused="drop")
    jax.tree.map(
        np.testing.assert_array_equal,
        from_portable(portable, old.init(params), params),
        state,
    )
    # On purpose:
    some = {key: x for key, x in portable.items() if "/manifest/" not in key}
    from_portable(some, new.init(params), params)


@pytest.mark.parametrize("name", CHANGES)
def test_update_refuses_the_state_of_another_orientation(name):
    """Its stacks have other names, which a restore by name sees, too."""
    params, before, after = CHANGES[name]
    state = jax.eval_shape(_tx(_rule(before)).init, params)
    with pytest.raises(ValueError, match="`state` must belong to these parameters"):
        jax.eval_shape(_tx(_rule(after)).update, params, state, params)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (((4, 8), Numbers(0, 1)), ((4, 2, 4), Numbers(0, (1, 2)))),
        (((3, 4, 8), Numbers(1, 2)), ((4, 3, 8), Numbers(0, 2))),
        (((4, 4), Numbers(0, 1)), ((4, 4, 1), Numbers(0, (1, 2)))),
        (((4, 4), Numbers(0, 1)), ((4, 4), Numbers(-2, -1, residual="in"))),
    ],
    ids=["heads apart", "scanned axis moved", "axis of length one", "residual known"],
)
@pytest.mark.broad
def test_a_leaf_of_another_form_keeps_its_state(before, after):
    """Its matrices are the same: only the same leaf with other axes is a mistake."""
    (old_shape, old_numbers), (new_shape, new_numbers) = before, after
    old, new = {"w": jnp.ones(old_shape)}, {"w": jnp.ones(new_shape)}
    tx = lambda numbers: on_matrices(optax.trace(0.9), dimension_numbers={"w": numbers})
    state = _trained(tx(old_numbers), old)
    filled = from_portable(to_portable(state, old), tx(new_numbers).init(new), new)
    jax.tree.map(
        np.testing.assert_array_equal,
        list(filled.inner_state.trace.values()),
        list(state.inner_state.trace.values()),
    )


@pytest.mark.broad
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_owners_know_the_axes_too(cpus, kind):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2, devices=cpus[:4])
    put = lambda x: jax.device_put(x, NamedSharding(mesh, P("x", "y")))
    params = {"w": put(np.arange(16.0, dtype=np.float32).reshape(4, 4))}
    placement = om.owners.from_params(params, ("x", "y"))
    owned = {
        i: on_matrices(
            optax.trace(0.9), dimension_numbers={"w": n}, placement=placement
        )
        for i, n in enumerate((Numbers(0, 1), Numbers(1, 0)))
    }
    plain = on_matrices(optax.trace(0.9), dimension_numbers={"w": Numbers(0, 1)})
    state = jax.jit(owned[0].update)(params, owned[0].init(params), params)[1]
    check_restored(state)
    portable = to_portable(state, params)
    local = {"w": jnp.arange(16.0).reshape(4, 4)}
    want = to_portable(_trained(plain, local), local)
    jax.tree.map(np.testing.assert_array_equal, portable, want)
    with pytest.raises(ValueError, match="other axes of 'w'"):
        from_portable(portable, owned[1].init(params), params)
