"""Axes that count matrices are never inside one, whoever gives dimension numbers."""

import contextlib
import itertools

import jax
import numpy as np
import pytest
from _walks import walk
from flax import linen as nn, nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
from optax.contrib import MuonDimensionNumbers

import optax_matrix as om
from optax_matrix.matrices import MatrixDimensionNumbers, by_path, infer
from optax_matrix.matrices._infer import _HEADS
from optax_matrix.matrices.batch_names import (
    BATCH,
    BESIDE_ANY,
    EXPERTS,
    batch_axes,
    is_dimension,
    likeliest,
)
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.names import RESIDUAL

SIZES = {"embed": 8, "mlp": 6}
WHOLE = [name for name in BATCH if name not in EXPERTS]


def boxed(names, kind="linen", shape=None):
    sizes = shape or [SIZES.get(name, 3) for name in names]
    x = jax.ShapeDtypeStruct(tuple(sizes), np.float32)
    if kind != "nnx":
        linen = {"linen": nn.LogicallyPartitioned, "partitioned": nn.Partitioned}[kind]
        return {"m": {"kernel": linen(x, names)}}
    box = nnx.Param(x, out_sharding=names, eager_sharding=False)
    return {"m": {"kernel": box}}


def axes(params, numbers):
    (found,) = decide(params, numbers).values()
    return found.view and (found.view.reduction_axes, found.view.output_axes)


@walk("name", BATCH)
def test_infer_leaves_out_every_name_of_the_table(name):
    for names in itertools.permutations((name, "embed", "mlp")):
        first, last = (a for a, x in enumerate(names) if x != name)
        params = boxed(names)
        assert axes(params, infer(params)) == ((first,), (last,))


@walk(
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


@pytest.mark.parametrize("kind", ["linen", "partitioned", "nnx"])
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
    bare = jax.tree.map(
        lambda x: np.ones(x.shape, np.float32), nn.unbox(boxed(["a"] * 4))
    )
    assert axes(bare, GIVEN[form](0, 3)) == ((0,), (3,))  # Nobody named its axes.


@walk("name", BATCH)
@pytest.mark.parametrize("side", ["reduction_axis", "output_axis"])
def test_every_name_of_the_table_is_refused(name, side):
    other = {"reduction_axis": "output_axis", "output_axis": "reduction_axis"}[side]
    numbers = by_path(numbers={"kernel": MatrixDimensionNumbers(**{side: 0, other: 2})})
    with pytest.raises(ValueError, match=rf"axis 0 \('{name}'\)"):
        decide(boxed((name, "embed", "mlp")), numbers)


@walk("name", BATCH)
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


EITHER = ["partitioned", "nnx"]  # These say logical names or axes of the mesh.
MESHES = (  # None, and one with axes of all of these names.
    contextlib.nullcontext,
    lambda: jax.sharding.use_abstract_mesh(
        AbstractMesh((1,) * (1 + len(BATCH)), ("fsdp", *BATCH))
    ),
)


@pytest.mark.parametrize("kind", EITHER)
@walk("name", BATCH)
def test_what_may_be_an_axis_of_the_mesh_can_be_in_a_matrix(name, kind):
    for mesh, give in itertools.product(MESHES, GIVEN.values()):
        with mesh():
            params = boxed(("fsdp", name, None), kind)
            assert axes(params, give(0, (1, 2))) == ((0,), (1, 2))


@pytest.mark.parametrize("kind", EITHER)
@walk("name", WHOLE)
def test_by_path_includes_what_may_have_an_axis_of_the_mesh(name, kind):
    for mesh in MESHES:
        with mesh():
            params = boxed(("fsdp", name), kind)
            assert axes(params, by_path(include="kernel")) == ((0,), (1,))


@pytest.mark.parametrize("kind", EITHER)
@walk("name", sorted({*BATCH} - {*BESIDE_ANY}))
def test_infer_drops_no_axis_that_may_be_of_the_mesh(name, kind):
    for mesh in MESHES:
        with mesh():
            for names in (("fsdp", name), (name, None, None), ("fsdp", name, None)):
                params = boxed(names, kind)
                assert axes(params, infer(params)) == axes(params, None)
            # Who says that they count matrices is believed.
            assert axes(params, infer(params, batch=(name,))) == ((0,), (2,))


@pytest.mark.parametrize("kind", EITHER)
@walk("name", BESIDE_ANY)
def test_infer_takes_names_of_layers_beside_any(name, kind):
    params = boxed(("fsdp", name, None), kind)
    assert axes(params, infer(params)) == ((0,), (2,))


@walk("name", BATCH)
def test_a_named_sharding_has_axes_of_its_mesh(name):
    mesh = AbstractMesh((1, 1), ("embed", name))
    params = boxed(NamedSharding(mesh, P("embed", name)), "nnx", (8, 3))
    for rule in (by_path(include="kernel"), infer(params)):
        assert axes(params, rule) == ((0,), (1,))


@pytest.mark.parametrize("kind", EITHER)
@walk("name", [*RESIDUAL, *_HEADS, "vocab", "vocabulary", "mlp"])
def test_one_dimension_tells_that_names_are_logical(name, kind):
    assert is_dimension(name)
    with pytest.raises(ValueError, match="axis 0 \\('exp'\\) in its matrix"):
        decide(boxed(("exp", name, "mine"), kind), GIVEN["ours"](0, 2))
    assert not any(map(is_dimension, (*BATCH, "fsdp", "tensor", "data", "model", None)))


@pytest.mark.parametrize("kind", EITHER)
def test_rules_tell_that_names_are_logical(kind):
    params, numbers = boxed(("stage", "wide", None), kind), GIVEN["ours"](0, 2)
    meaning = lambda name: nn.logical_axis_rules((("stage", "stage"), ("wide", name)))
    with meaning("fsdp"):
        assert axes(params, infer(params)) == ((1,), (2,))
        with pytest.raises(ValueError, match="axis 0 \\('stage'\\) in its matrix"):
            decide(params, numbers)
    with meaning("wide"):  # They stand for themselves.
        assert axes(params, numbers) == ((0,), (2,))
    x = jax.ShapeDtypeStruct((3, 8, 4), np.float32)
    own = {"sharding_rules": (("wide", "fsdp"),), "eager_sharding": False}
    box = nnx.Param(x, out_sharding=("stage", "wide", None), **own)
    with pytest.raises(ValueError, match="axis 0 \\('stage'\\) in its matrix"):
        decide({"m": box}, numbers)


def test_a_name_that_infer_is_given_tells_that_names_are_logical():
    params = boxed(("repeats", "wide", "narrow"), "nnx")
    assert axes(params, infer(params, residual=("narrow",))) == ((1,), (2,))


def test_names_of_a_linen_box_stay_logical_in_nnx():
    params = boxed(("fsdp", "stage"), "nnx")
    params["m"]["kernel"].set_metadata(linen_meta_type=nn.LogicallyPartitioned)
    with pytest.raises(ValueError, match="axis 1 \\('stage'\\) in its matrix"):
        decide(params, by_path(include="kernel"))


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
