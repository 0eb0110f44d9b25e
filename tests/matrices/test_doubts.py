"""Decisions of the default rule that are reported, once, and how to settle them."""

import dataclasses
import warnings
from typing import Any

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import zeros

import optax_matrix as om
from optax_matrix.matrices import _clauses, infer
from optax_matrix.matrices.boxes import boxed, names_of
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.doubts import ReadFromNamesWarning, doubts
from optax_matrix.matrices.rules import by_path
from optax_matrix.matrices.view import MatrixDimensionNumbers
from optax_matrix.stacks.layout import make_layout
from optax_matrix.tree import describe


def _messages(params, dimension_numbers=None):
    """The lines on parameters in the warning of `init`; none if it does not warn."""
    tx = om.muon(1e-3, dimension_numbers=dimension_numbers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.eval_shape(tx.init, params)
    assert len(caught) <= 1
    assert all(issubclass(w.category, ReadFromNamesWarning) for w in caught)
    lines = [line for w in caught for line in str(w.message).splitlines()]
    return [line.strip() for line in lines if line.startswith("  ")]


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("shape", [(64, 2, 128), (48, 8, 2), (200, 128, 64)])
def test_more_matrices_than_a_side_are_reported(shape):
    (line,) = _messages({"layers": {"mlp": {"kernel": _shape(*shape)}}})
    assert "axis 0 may not be of layers or experts" in line
    numbers = MatrixDimensionNumbers(0, 2)
    assert _messages({"layers": _shape(*shape)}, by_path(numbers={"": numbers})) == []


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("experts/up/kernel", (64, 64, 128)),
        ("layers/experts/up/kernel", (12, 48, 64, 128)),
        ("layers/mlp/kernel", (24, 32, 8)),
        ("layers/lora_a", (48, 64, 4)),
    ],
)
def test_layers_experts_and_lora_factors_are_not(path, shape):
    assert _messages({path: _shape(*shape)}) == []


def _boxed(shape, names):
    return nn.LogicallyPartitioned(_shape(*shape), names)


def test_axis_names_of_linen_boxes_that_contradict_are_reported():
    """MaxText's layers on axis 1, and a head that its name does not tell."""
    params = {
        "mlp": _boxed((64, 4, 128), ("embed", "layers", "mlp")),
        "project": _boxed((64, 512), ("embed", "vocab")),
        "right": _boxed((4, 64, 128), ("layers", "embed", "mlp")),
        "mesh": _boxed((64, 128), ("fsdp", "tp")),
    }
    mlp, project = _messages(params)
    assert mlp.startswith("mlp: 64x (128, 4)")
    assert "its axis names say 4x (128, 64)" in mlp
    assert "its axis names say no matrix (embedding or head" in project
    assert _messages(params, infer(params)) == []


def test_axis_names_of_nnx_variables_that_contradict_are_reported():
    init = nnx.with_partitioning(
        nnx.initializers.lecun_normal(), ("embed", "vocab"), eager_sharding=False
    )
    model = nnx.Linear(8, 32, kernel_init=init, use_bias=False, rngs=nnx.Rngs(0))
    (line,) = _messages(nnx.state(model, nnx.Param))
    assert line.startswith("kernel: 1x (32, 8)")


def test_describe_tells_the_doubt():
    params = {"qkv_proj/kernel": _shape(16, 48), "down/kernel": _shape(16, 16)}
    rows = {row.leaf: row.why for row in describe(params).rows}
    assert "kernel (in, out), but it may hold several" in rows["qkv_proj/kernel"]
    assert rows["down/kernel"] == "kernel (in, out)"


def test_many_doubts_are_counted():
    lines = _messages({f"w{i:02}": _shape(64, 2, 128) for i in range(20)})
    assert len(lines) == 6
    assert lines[-1] == "and 15 more"


CASES = {  # The start of a clause: the leaf that it is about, and others around it.
    "matrices.by_path(include=": {"mlp/odd": (8, 16), "mlp/kernel": (8, 16)},
    "axis 1 has 3 entries": {"a/kernel": (32, 3, 64), "b/kernel": (64, 3, 32)},
    "it may hold several matrices": {"qkv_proj/kernel": (16, 48)},
    "as in PyTorch it may be (out, in, ...)": {"linear/weight": (16, 32)},
    "axis 0 may not be of layers": {"kernel": (200, 128, 64)},
}


@pytest.mark.parametrize("start", CASES)
def test_each_clause_of_the_list_is_given(start):
    params = {path: _shape(*shape) for path, shape in CASES[start].items()}
    found = doubts(params, decide(params))
    assert found[next(iter(params))].startswith(start)


def test_axis_names_come_before_other_clauses():
    odd = _boxed((8, 16), ("embed", "mlp"))
    (message,) = _messages({"mlp": {"kernel": _shape(8, 16), "odd": odd}})
    assert "mlp/odd: no matrix" in message
    assert "its axis names say 1x (16, 8)" in message


def test_a_complex_kernel_is_reported_and_every_row_of_the_list_has_a_case():
    params = {"kernel": jax.ShapeDtypeStruct((8, 16), jnp.complex64)}
    (clause,) = doubts(params, decide(params)).values()
    assert clause.startswith("the methods take real matrices")
    rows = {*_clauses._OF_OTHERS, *_clauses._OF_MATRICES}
    starts = {clause.partition("{")[0] for _, clause in rows}
    elsewhere = {"its axis names say ", "the methods take real matrices; "}
    cases = {*CASES, *elsewhere}
    for start in starts:
        assert any(x.startswith(start) or start.startswith(x) for x in cases), start


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class NamedArray:
    """As in Haliax: a node without names of keys, whose axes have names."""

    array: Any
    axis_names: tuple

    @property
    def axes(self):
        return tuple(map(Axis, self.axis_names, jnp.shape(self.array)))

    def tree_flatten(self):
        return (self.array,), self.axis_names

    @classmethod
    def tree_unflatten(cls, axis_names, children):
        return cls(children[0], axis_names)


@dataclasses.dataclass(frozen=True)
class Axis:
    name: str
    size: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """As in Haliax: the weight's axes are those of Out and In, with layers in front."""

    weight: NamedArray
    bias: Any = None
    In: Any = dataclasses.field(default=None, metadata={"static": True})
    Out: Any = dataclasses.field(default=None, metadata={"static": True})


EMBED, MLP, HEADS, DIM, LAYER, VOCAB = (
    Axis(*x)
    for x in (
        ("embed", 64),
        ("mlp", 256),
        ("heads", 4),
        ("head_size", 16),
        ("layer", 3),
        ("vocab", 512),
    )
)


def _named(*axes):
    sizes, names = zip(*((axis.size, axis.name) for axis in axes), strict=True)
    return NamedArray(np.zeros(sizes, np.float32), names)


def test_infer_reads_named_arrays_without_their_arrays():
    """Trees of the other leaves have None in place of matrices."""
    model = {"up": Linear(_named(MLP, EMBED), None, EMBED, MLP)}
    hollow = jax.tree.map(lambda _: None, model)
    found = [infer(x).of_leaf("up/weight/0", zeros(256, 64)) for x in (hollow, model)]
    assert found[0] == found[1]


def test_infer_reads_named_arrays_and_the_sides_of_their_layers():
    model = {
        "up": Linear(_named(LAYER, MLP, EMBED), _named(LAYER, MLP), EMBED, MLP),
        "down": Linear(_named(LAYER, EMBED, MLP), None, MLP, EMBED),
        "q": Linear(_named(LAYER, HEADS, DIM, EMBED), None, EMBED, (HEADS, DIM)),
        "token": _named(VOCAB, EMBED),
    }
    layout = make_layout(model, infer(model))
    found = {p: (str(v), v.residual) for p, v in layout.views.items()}
    assert found == {
        "up/weight/0": ("3x (256, 64)", "in"),
        "down/weight/0": ("3x (64, 256)", "out"),
        "q/weight/0": ("3x (64, 64)", "in"),
    }
    decisions = decide(model, infer(model))
    assert "embedding or head" in decisions["token/0"].reason
    assert decisions["up/bias/0"].reason == "a bias or scale by its name"
    # Without the names, biases tell the sides of all weights.
    assert str(decide(model)["down/weight/0"].view) == "3x (64, 256)"
    (told,) = _messages({"down": model["down"]})
    assert "down/weight/0: 3x (256, 64)" in told
    assert "its axis names say 3x (64, 256)" in told


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Named13:
    """As in Haliax 1.3 and 1.4: axes with names and sizes, no ``axis_names``."""

    array: Any
    axes: tuple

    def tree_flatten(self):
        return (self.array,), self.axes

    @classmethod
    def tree_unflatten(cls, axes, children):
        return cls(children[0], axes)


Named13.__name__ = "NamedArray"


def test_axes_of_haliax_before_axis_names_are_read():
    array = lambda *axes: Named13(np.zeros([a.size for a in axes], np.float32), axes)
    up = Linear(array(LAYER, MLP, EMBED), None, EMBED, MLP)
    model = {"up": up, "token": array(VOCAB, EMBED)}
    decisions = decide(model, infer(model))
    assert str(decisions["up/weight/0"].view) == "3x (256, 64)"
    assert "embedding or head" in decisions["token/0"].reason
    assert "its axis names say 3x (256, 64)" in " ".join(_messages({"up": up}))


def test_a_box_of_haliax_before_axis_names_is_made_as_it_was():
    like = Named13(zeros(64, 256), (EMBED, MLP))
    assert names_of(like) == ("embed", "mlp")
    specs = {"a": ("mlp", None)}
    made = boxed({"a": zeros(256, 3)}, specs, {"w/0": like}, {})["a"]
    assert made.axes == (MLP, Axis("unsharded_1", 3))
