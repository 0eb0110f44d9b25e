"""Axes that count matrices are never inside one, whoever gives dimension numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx
from jax.sharding import AxisType
from optax.contrib import MuonDimensionNumbers

import optax_matrix as om
from optax_matrix.matrices import MatrixDimensionNumbers, by_path, infer
from optax_matrix.matrices.batch_names import BATCH, EXPERTS, batch_axes, likeliest
from optax_matrix.matrices.decisions import decide

SIZES = {"embed": 8, "mlp": 6}
WHOLE = [name for name in BATCH if name not in EXPERTS]


def boxed(names, kind="linen", shape=None):
    sizes = shape or [SIZES.get(name, 3) for name in names]
    x = jax.ShapeDtypeStruct(tuple(sizes), np.float32)
    if kind == "linen":
        return {"m": {"kernel": nn.LogicallyPartitioned(x, names)}}
    box = nnx.Param(x, out_sharding=names, eager_sharding=False)
    return {"m": {"kernel": box}}


def axes(params, numbers):
    (found,) = decide(params, numbers).values()
    return found.view and (found.view.reduction_axes, found.view.output_axes)


@pytest.mark.parametrize("name", BATCH)
def test_infer_leaves_out_every_name_of_the_table(name):
    for names in itertools.permutations((name, "embed", "mlp")):
        first, last = (a for a, x in enumerate(names) if x != name)
        params = boxed(names)
        assert axes(params, infer(params)) == ((first,), (last,))


@pytest.mark.parametrize(
    ("names", "want"),
    {
        ("circular_repeats", "layers", "mlp", "embed"): ((2,), (3,)),
        ("circular_repeats", "layers", "embed", "mlp"): ((2,), (3,)),
        ("circular_repeats", "layers", "mlp", "layers_per_stage", "embed"): (
            (2,),
            (4,),
        ),
        ("embed_attn", "layers", "kv_heads", "kv_head_dim"): ((0,), (2, 3)),
        ("layers", "embed_attn", "q_heads", "kv"): ((1,), (2, 3)),
        ("heads", "layers", "kv", "embed_attn"): ((0, 2), (3,)),
        ("kv_lora", "moe_layers", "kv_heads", "kv_head_dim"): ((0,), (2, 3)),
        ("q_lora", "q_heads", "kv"): ((0,), (1, 2)),
        ("embed_attn", "dense_layers", "kv_lora_up_proj"): ((0,), (2,)),
        ("exp", "layers", "local_layers", "embed_moe", "mlp_moe"): ((3,), (4,)),
        ("o_groups", "q_heads", "o_lora_up_proj"): ((1,), (2,)),
    }.items(),
)
def test_infer_knows_the_names_of_maxtext(names, want):
    params = boxed(names)
    assert axes(params, infer(params)) == want


GIVEN = {
    "ours": lambda r, o: {"m": MatrixDimensionNumbers(r, o)},
    "optax": lambda r, o: {"m": {"kernel": MuonDimensionNumbers(r, o)}},
    "path": lambda r, o: by_path(numbers={"kernel": MatrixDimensionNumbers(r, o)}),
    "call": lambda r, o: lambda _: {"m": MatrixDimensionNumbers(r, o)},
}


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.parametrize("form", GIVEN)
def test_given_numbers_with_such_an_axis_inside_are_refused(form, kind):
    params = boxed(("circular_repeats", "layers", "embed", "mlp"), kind)
    tx = om.muoneq(1e-2, dimension_numbers=GIVEN[form](0, 3))
    message = r"'m/kernel'.*axis 0 \('circular_repeats'\) in its matrix.*axes \(2, 3\)"
    for do in (
        lambda: jax.eval_shape(tx.init, params),
        lambda: om.describe(params, GIVEN[form](0, 3)),
    ):
        with pytest.raises(ValueError, match=message):
            do()
    assert axes(params, GIVEN[form](2, 3)) == ((2,), (3,))
    bare = jax.tree.map(lambda x: jnp.ones(x.shape), nn.unbox(boxed(["a"] * 4)))
    assert axes(bare, GIVEN[form](0, 3)) == ((0,), (3,))  # Nobody named its axes.


@pytest.mark.parametrize("name", BATCH)
@pytest.mark.parametrize("side", ["reduction_axis", "output_axis"])
def test_every_name_of_the_table_is_refused(name, side):
    other = {"reduction_axis": "output_axis", "output_axis": "reduction_axis"}[side]
    numbers = by_path(numbers={"kernel": MatrixDimensionNumbers(**{side: 0, other: 2})})
    with pytest.raises(ValueError, match=rf"axis 0 \('{name}'\)"):
        decide(boxed((name, "embed", "mlp")), numbers)


@pytest.mark.parametrize("name", BATCH)
def test_a_router_has_experts_but_no_layers_inside(name):
    params = boxed(("embed", name))
    numbers = by_path(numbers={"kernel": MatrixDimensionNumbers(0, 1)})
    if name in WHOLE:
        with pytest.raises(ValueError, match=rf"axis 1 \('{name}'\)"):
            decide(params, numbers)
    else:
        assert axes(params, numbers) == ((0,), (1,))


def test_a_mesh_axis_of_such_a_name_says_nothing_of_the_kernel():
    mesh = jax.sharding.AbstractMesh(
        (1, 1), ("expert", "tp"), axis_types=(AxisType.Auto,) * 2
    )
    numbers = by_path(numbers={"kernel": MatrixDimensionNumbers(1, 2)})
    names = (None, "expert", "tp")
    with pytest.raises(ValueError, match="'expert'"):
        decide(boxed(names), numbers)
    with jax.sharding.use_abstract_mesh(mesh):
        assert axes(boxed(names), numbers) == ((1,), (2,))


def test_guesses_are_doubted_instead():
    params = boxed(("embed", "layers", "mlp"))
    with pytest.warns(UserWarning, match="its axis names say"):
        jax.eval_shape(om.muoneq(1e-2).init, params)


def test_names_that_are_split_most_often_come_first():
    assert likeliest(("circular_repeats", "layers")) == "layers"
    assert likeliest(("layers", "exp")) == "exp"
    assert likeliest(("layers", "stage")) == "stage"
    assert likeliest(("repeat", "mine")) == "mine"
    assert batch_axes(("embed", "layers", None, "exp")) == [1, 3]
