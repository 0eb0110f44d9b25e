"""State counted by hand."""

import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from optax_matrix.diagnostics import state_bytes

SHAPES = {"a": {"kernel": (4, 6)}, "b": {"kernel": (4, 6), "bias": (6,)}, "scale": ()}
BFLOAT16 = {"embedding": {"embedding": (10, 4)}}


def shapes_of(tree, dtype=jnp.float32):
    is_shape = lambda x: isinstance(x, tuple)
    make = lambda shape: jax.ShapeDtypeStruct(shape, dtype)
    return jax.tree.map(make, tree, is_leaf=is_shape)


PARAMS = shapes_of(SHAPES) | shapes_of(BFLOAT16, jnp.bfloat16)
ELEMENTS = 2 * 24 + 6 + 1 + 40


def stack(counted):
    (name,) = {f.group for f in counted.fields if "@" in f.group}
    return name


def test_adam_counts_each_leaf_twice():
    counted = state_bytes(optax.scale_by_adam(mu_dtype=jnp.bfloat16), PARAMS)
    assert counted.parameters == ELEMENTS
    assert counted.elements == 2 * ELEMENTS
    assert counted.scalars == 1
    assert counted.by_group() == {
        "(shared)": 4,
        "a/kernel": 24 * (2 + 4),
        "b/bias": 6 * (2 + 4),
        "b/kernel": 24 * (2 + 4),
        "embedding/embedding": 40 * (2 + 2),
        "scale": 1 * (2 + 4),
    }
    nu = 4 * 24 + 4 * 6 + 4 * 24 + 2 * 40 + 4
    assert counted.by_field() == {"count": 4, "mu": 2 * ELEMENTS, "nu": nu}
    assert counted.bytes == 4 + 2 * ELEMENTS + nu


def test_stacks_of_a_recipe():
    """RACS: m + n, a norm and four numbers that say which matrix; Adam for the rest."""
    counted = state_bytes(om.racs(0.02), PARAMS)
    name = stack(counted)
    of_stack = counted.of_group(name)
    kinds = {f.field: (f.shape, f.scalar) for f in of_stack.fields}
    assert kinds == {
        "manifest": ((2, 4), True),
        "row_scale": ((2, 6), False),
        "col_scale": ((2, 4), False),
        "norm": ((2, 1, 1), True),
    }
    assert of_stack.elements == 2 * (6 + 4)
    assert of_stack.scalars == 2 * (1 + 4)
    others = 2 * (6 + 1) * 4 + 2 * 40 * 2
    name_and_count = 4 + 4
    assert counted.bytes == 4 * 2 * (6 + 4 + 5) + others + name_and_count
    assert counted.elements == 2 * (6 + 4) + 2 * (6 + 1 + 40)


def test_names_are_those_of_the_method():
    fields = state_bytes(om.soap(1e-3), PARAMS).by_field()
    sides = {f"{x}/{side}" for x in ("rotation",) for side in ("rows", "cols")}
    grams = {f"gram/{s}/{x}" for s in ("rows", "cols") for x in ("normalized", "peak")}
    own = {
        "method/soap",
        "manifest",
        "sides/both",
        "zero_gradients",
        "momentum/mu",
        "momentum/weight",
        "root",
        "weight",
        "count",
    }
    assert set(fields) == sides | grams | own | {"mu", "nu"}
    assert fields["rotation/rows"] == 4 * 2 * 6 * 6


def test_eight_bits():
    params = {"kernel": jax.ShapeDtypeStruct((64, 70), jnp.float32)}
    tx = om.muon(1e-3, placement=om.quantized())
    fields = state_bytes(tx, params).by_field()
    assert fields["mu"] == 64 * 70
    assert fields["scales/signed_256/mu"] == 4 * -(-64 * 70 // 256)
    fields = state_bytes(om.adamw_8bit(1e-3), params).by_group()
    assert fields == {"(shared)": 4, "kernel": 2 * (64 * 70 + 4 * -(-64 * 70 // 256))}


def test_wrappers_and_arrays():
    """Hyperparameters are shared; arrays count as their shapes do."""
    arrays = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), PARAMS)
    tx = om.inject_hyperparams(om.muon)(1e-3)
    counted = state_bytes(optax.MultiSteps(tx, 2), PARAMS)
    assert counted == state_bytes(optax.MultiSteps(tx, 2), arrays)
    shared = {f.field for f in counted.fields if f.group == "(shared)"}
    assert {"hyperparams/learning_rate", "mini_step", "count"} <= shared
    sums = counted.by_field()
    held = jax.eval_shape(optax.MultiSteps(tx, 2).init, PARAMS)
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    assert sums["acc_grads"] == size(held.acc_grads) >= 3 * ELEMENTS
    assert counted.bytes == size(held)
    assert sum(counted.by_group().values()) == sum(sums.values()) == counted.bytes


def test_nothing_is_allocated():
    """Shapes of 10 TB: no array of their size can have been made."""
    params = {"kernel": jax.ShapeDtypeStruct((10**6, 2500000), jnp.float32)}
    counted = state_bytes(om.muon(1e-3), params)
    assert counted.bytes == 10**13 + 16 + 4 + 4 + 4


def test_table_has_a_line_for_each_array():
    counted = state_bytes(om.muon(1e-3), PARAMS)
    header, *lines, total = str(counted).splitlines()
    assert header.split() == ["group", "field", "shape", "dtype", "elements", "bytes"]
    assert len(lines) == len(counted.fields)
    assert total.split()[0] == "total"
    assert int(total.split()[-1].replace(",", "")) == counted.bytes
    assert len({len(line) for line in (header, *lines, total)}) == 1


def test_a_parameter_may_have_the_name_of_a_count():
    params = {"count": jnp.ones(3), "w": jnp.ones((2, 2))}
    counted = state_bytes(optax.adam(1e-3), params)
    assert (counted.elements, counted.scalars) == (14, 1)
