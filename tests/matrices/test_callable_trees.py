"""Models of Equinox are trees that can be called, and no functions of parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from _registry import small

import optax_matrix as om

pytestmark = pytest.mark.broad


class Layer(eqx.Module):
    up: jax.Array
    down: jax.Array

    def __call__(self):
        raise AssertionError("a tree was called")


@pytest.fixture
def params():
    key = jax.random.key(0)
    return Layer(*(jax.random.normal(k, (4, 4)) for k in jax.random.split(key)))


def updates(params, **options):
    tx = small("muoneq")(0.1, weight_decay=0.5, **options)
    grads = jax.tree.map(jnp.cos, params)
    return jax.jit(tx.update)(grads, tx.init(params), params)[0]


def assert_equal(a, b):
    assert (a.up == b.up).all()
    assert (a.down == b.down).all()


@pytest.mark.parametrize("cautious", [False, True])
def test_a_mask(params, cautious):
    options = {"cautious_decay": cautious}
    got = updates(params, weight_decay_mask=Layer(True, False), **options)
    made = updates(params, weight_decay_mask=lambda _: Layer(True, False), **options)
    assert_equal(got, made)
    plain = updates(params, weight_decay_mask=False, **options)
    assert (got.down == plain.down).all()
    assert (got.up != plain.up).any()


def test_dimension_numbers(params):
    given = Layer(om.MatrixDimensionNumbers(1, 0), None)
    got = updates(params, dimension_numbers=given)
    assert_equal(got, updates(params, dimension_numbers=lambda _: given))
    rule = om.matrices.by_path(exclude="down", numbers={"up": given.up})
    assert_equal(got, updates(params, dimension_numbers=rule))
    assert_equal(got, updates(params, dimension_numbers=lambda _: rule))


def test_a_function_that_names_no_matrices(params):
    none = updates(params, dimension_numbers=lambda _: None)
    assert_equal(none, updates(params, dimension_numbers=Layer(None, None)))
