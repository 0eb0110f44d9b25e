"""Matrices that start at zero: `describe` marks them, POET warns of them."""

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest
from _raised import raise_warnings
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

PARAMS = {
    "lora_a": {"kernel": jnp.ones((6, 4))},
    "lora_b": {"kernel": jnp.zeros((4, 6))},
    "layers": {"kernel": jnp.ones((2, 4, 4)).at[1].set(0)},
    "norm": jnp.zeros(4),
}
ZEROS = "never moved by .*: layers/kernel, lora_b/kernel. Initialize them"


@pytest.mark.broad
def test_describe_marks_them():
    why = {row.leaf: row.why for row in om.describe(PARAMS).rows}
    marked = {leaf for leaf, reason in why.items() if "all zeros" in reason}
    assert marked == {"lora_b/kernel", "layers/kernel"}
    shapes = jax.eval_shape(lambda: PARAMS)
    assert "zeros" not in str(om.describe(shapes))


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["one device", "Auto", "Explicit"])
@pytest.mark.parametrize("spec", [P("x", None, "y"), P(None, ("x", "y"), None)])
def test_a_section_of_zeros_is_found(kind, spec, cpus):
    qkv = jnp.ones((4, 8, 4)).at[:, 4:6].set(0)  # (in, heads, size), 4 + 2 + 2 heads.
    if kind != "one device":
        types = (getattr(AxisType, kind),) * 2
        mesh = jax.make_mesh((2, 4), ("x", "y"), types, devices=cpus)
        qkv = jax.device_put(qkv, NamedSharding(mesh, spec))
    why = {}
    for sections in (1, (16, 8, 8), 8, (8, 16, 8)):
        numbers = om.MatrixDimensionNumbers(0, (1, 2), output_sections=sections)
        rows = om.describe({"qkv": qkv}, {"qkv": numbers}).rows
        why[sections] = "all zeros" in rows[0].why
    assert why == {1: False, (16, 8, 8): True, 8: True, (8, 16, 8): False}


def test_a_deleted_array_is_skipped():
    gone = jnp.zeros((4, 4))
    gone.delete()
    assert "zeros" not in str(om.describe({"kernel": gone}))


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "name"), [(om.poet, "poet"), (om.oft, "oft")])
def test_poet_warns_at_init_where_values_can_be_seen(recipe, name):
    tx = recipe(1e-3, block=4)
    with pytest.warns(UserWarning, match=ZEROS.replace(".*", f"{name},.*")):
        tx.init(PARAMS)
    with warnings.catch_warnings():
        raise_warnings()
        jax.eval_shape(tx.init, PARAMS)
        tx.init({"kernel": jnp.ones((4, 4))})
        rule = om.matrices.by_path(exclude="lora_b|layers")
        recipe(1e-3, block=4, dimension_numbers=rule).init(PARAMS)
        om.muon(1e-3).init(PARAMS)


@pytest.mark.broad
def test_the_reparameterization_warns_too():
    with pytest.warns(UserWarning, match=ZEROS):
        om.reparameterize(block=4).split(PARAMS)


@pytest.mark.broad
def test_they_do_stay_where_they_are():
    params = {"kernel": jnp.zeros((4, 6))}
    tx = om.poet(0.1, block=4)
    updates, _ = jax.jit(tx.update)(
        {"kernel": jnp.ones((4, 6))}, tx.init(params), params
    )
    assert not optax.apply_updates(params, updates)["kernel"].any()
