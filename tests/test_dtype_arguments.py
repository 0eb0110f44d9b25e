"""Every argument that takes a dtype: floats of eight bits and fewer are refused."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import optax
import pytest
from _registry import BLOCKS, RECIPES
from _walks import walk

import optax_matrix as om

W = {"up": {"kernel": jax.ShapeDtypeStruct((4, 6), jnp.float8_e4m3fn)}}
TINY = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn")
NEEDED = {  # What these functions need besides, by the argument's name.
    "learning_rate": 1e-2,
    "mesh_axes": "fsdp",
    "inner": optax.identity(),
    "x": jnp.eye(2),
}


def _factories():
    """Public functions, and classes that are made from options, by their names."""
    public = [getattr(om, name) for name in om.__all__]
    for package in (om, *filter(inspect.ismodule, public)):
        for name in package.__all__:
            made = getattr(package, name)
            is_class = inspect.isclass(made) and dataclasses.is_dataclass(made)
            if inspect.isfunction(made) or is_class:
                yield f"{made.__module__}.{made.__qualname__}", made


def _cases():
    for name, factory in dict(_factories()).items():
        parameters = inspect.signature(factory).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty]
        for option in parameters:
            if "dtype" in option.name and option.name not in needed:
                given = {n: NEEDED[n] for n in needed if n != "common"}
                make = functools.partial(factory, **given)
                yield pytest.param(make, option.name, id=f"{name}-{option.name}")


every_dtype_argument = walk(("factory", "argument"), _cases())


@every_dtype_argument
def test_floats_of_eight_bits_are_refused(factory, argument):
    for dtype in TINY:
        with pytest.raises(ValueError, match=f"`{argument}` must .*got .*{dtype}"):
            factory(**{argument: jnp.dtype(dtype)})


@every_dtype_argument
def test_floats_of_sixteen_bits_work(factory, argument):
    if argument == "wire_dtype":  # It needs the range of float32.
        factory(wire_dtype=jnp.bfloat16)
    elif factory.func is om.weights.store_remainders:
        pass  # Those of bfloat16 are integers.
    else:
        for dtype in (jnp.float16, "bfloat16"):
            run = functools.partial(factory, **{argument: dtype})
            jax.eval_shape(lambda run=run: (run(), None)[1])  # Kernels are traced.


def test_what_a_float_of_eight_bits_is_answered_with():
    with pytest.raises(ValueError, match=r"eight bits use om.quantized or"):
        om.muoneq(1e-2, mu_dtype="float8_e5m2")
    polar = functools.partial(om.linalg.newton_schulz, compute_dtype="float8_e5m2")
    with pytest.raises(ValueError, match=r"`compute_dtype` must have 16 bits or more"):
        om.muoneq(1e-2, polar=polar)


@walk("name", RECIPES)
def test_weights_of_eight_bits_get_a_sentence(name):
    with pytest.raises(ValueError, match="got float8_e4m3fn at 'up/kernel', where"):
        jax.eval_shape(RECIPES[name](1e-2).init, W)


def test_primitives_of_weights_of_eight_bits():
    with pytest.raises(ValueError, match="must have 16 bits or more, got float8"):
        jax.eval_shape(om.spo(optax.sgd(0.1), block=2).init, W["up"])


def test_weights_of_eight_bits_that_are_not_the_methods():
    tx = om.muoneq(1e-2, dimension_numbers=om.matrices.by_path(exclude="up"))
    jax.eval_shape(tx.init, W)


@walk("name", BLOCKS)
def test_no_block_keeps_a_state_in_the_dtype_of_such_weights(name):
    stacks = {"w": jax.ShapeDtypeStruct((2, 4, 6), jnp.float8_e4m3fn)}
    state, said = [], "must have 16 bits or more, got float8_e4m3fn"
    try:
        state = jax.eval_shape(BLOCKS[name]().init, stacks)
    except ValueError as error:
        assert said in str(error)  # noqa: PT017 (others have no state in this dtype)
    assert not [x for x in jax.tree.leaves(state) if x.dtype == jnp.float8_e4m3fn]
