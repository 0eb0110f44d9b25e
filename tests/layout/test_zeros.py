"""Matrices that start at zero: `describe` marks them, POET warns of them."""

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_matrix as om

PARAMS = {
    "lora_a": {"kernel": jnp.ones((6, 4))},
    "lora_b": {"kernel": jnp.zeros((4, 6))},
    "layers": {"kernel": jnp.ones((2, 4, 4)).at[1].set(0)},
    "norm": jnp.zeros(4),
}
ZEROS = "never moved by .*: layers/kernel, lora_b/kernel. Initialize them"


def test_describe_marks_them():
    why = {row.leaf: row.why for row in om.describe(PARAMS).rows}
    marked = {leaf for leaf, reason in why.items() if "all zeros" in reason}
    assert marked == {"lora_b/kernel", "layers/kernel"}
    shapes = jax.eval_shape(lambda: PARAMS)
    assert "zeros" not in str(om.describe(shapes))


@pytest.mark.parametrize("recipe", [om.poet, om.oft])
@pytest.mark.broad
def test_poet_warns_at_init_where_values_can_be_seen(recipe):
    tx = recipe(1e-3, block=4)
    with pytest.warns(UserWarning, match=ZEROS):
        tx.init(PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(tx.init, PARAMS)
        tx.init({"kernel": jnp.ones((4, 4))})
        rule = om.layout.by_path(exclude="lora_b|layers")
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
