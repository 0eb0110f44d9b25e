"""Work on the host grows with the number of leaves, not faster.

Lines of this library that are executed are counted, not seconds. Where the count is
linear, that of n, 2n and 3n layers has no second difference.
"""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from _registry import small
from flax import linen as nn
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import optax_matrix as om

PACKAGE = str(Path(om.__file__).parent)
LAYERS = 4
SPECS = NamedSharding(AbstractMesh((2,), ("fsdp",)), P())
# Trees of one flat scope have names that leave open what they are.
pytestmark = pytest.mark.filterwarnings("ignore:Check how these parameters")


def lines_of(f):
    """How many lines of this library a call executes, each turn of a loop included."""
    count = 0

    def inside(_frame, event, _arg):
        nonlocal count
        count += event == "line"
        return inside

    def trace(frame, _event, _arg):
        return inside if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        f()
    finally:
        sys.settrace(before)
    return count


def experts(n):
    of_one = {"gate": (8, 16), "up": (8, 16), "down": (16, 8)}
    module = lambda i, name: f"layers_{i}/moe/experts/{{}}/{name}"
    leaves = {
        module(i, name).format(e): shape
        for i in range(2)
        for e in range(4 * n)
        for name, shape in of_one.items()
    }
    return leaves | {f"layers_{i}/moe/gate/kernel": (8, 4 * n) for i in range(2)}


def by_layer(n):
    layer = {
        "attn/qkv/kernel": (8, 24),
        "attn/qkv/bias": (24,),
        "attn/o/kernel": (8, 8),
        "mlp/up/kernel": (8, 32),
        "mlp/down/kernel": (32, 8),
        "norm/scale": (8,),
    }
    return {f"layers_{i}/{k}": s for i in range(4 * n) for k, s in layer.items()}


def dotted(n):
    layer = {
        "attn.qkv.weight": (24, 8),
        "attn.o.weight": (8, 8),
        "lstm.weight": (32, 8),
        "mlp.gate.weight": (8, 16),
        "mlp.adaln.weight": (48, 8),
        "norm.weight": (8,),
    }
    return {f"layers.{i}.{k}": s for i in range(4 * n) for k, s in layer.items()}


def beside(n):
    """All in one module: stacks, what may be stacks of vectors, heads; no square."""
    one = {
        "w": (9, 8, 16),
        "s": (9, 12),
        "q": (8, 9, 4),
        "o": (9, 4, 8),
        "b": (9, 8),
        "x": (7, 20),
    }
    return {f"{name}{i}": shape for i in range(6 * n) for name, shape in one.items()}


def ragged(n):
    return {f"m/{i}/kernel": (8 + i % 5, 8 + i // 5) for i in range(6 * n)}


TREES = {f.__name__: f for f in (experts, by_layer, dotted, beside, ragged)}


def params_of(name, n):
    shapes = TREES[name](n)
    return {p: jax.ShapeDtypeStruct(s, np.float32) for p, s in shapes.items()}


def describe(params):
    return lambda: om.describe(params)


def describe_owners(params):
    placement = om.owners("fsdp", param_specs=SPECS)
    return lambda: om.describe(params, placement=placement)


def describe_named(params):
    """With names of axes on every leaf, against which the default rule is held."""
    known = {8: "embed", 9: "layers"}
    names = lambda x: tuple(known.get(size, "mlp") for size in x.shape)
    boxed = {p: nn.LogicallyPartitioned(x, names(x)) for p, x in params.items()}
    return lambda: om.describe(boxed, om.matrices.infer(boxed))


def init(params):
    return lambda: jax.eval_shape(small("muoneq")(0.1).init, params)


def init_owners(params):
    placement = om.owners("fsdp", param_specs=SPECS)
    return lambda: jax.eval_shape(
        small("muoneq")(0.1, placement=placement).init, params
    )


def plan(params):
    placement = om.owners("fsdp", param_specs=SPECS)
    return lambda: om.sharding.plan(om.muon(0.1, placement=placement), params, SPECS)


DOES = {
    f.__name__: f
    for f in (describe, describe_owners, describe_named, init, init_owners, plan)
}


ON_ONE = {"init": "experts", "init_owners": "by_layer", "plan": "by_layer"}
CASES = [
    (does, tree)
    for does in DOES
    for tree in TREES
    if ON_ONE.get(does, tree) == tree  # What they call besides depends on no names.
]


@pytest.mark.broad
@pytest.mark.parametrize(("does", "tree"), CASES)
def test_twice_the_leaves_take_twice_the_work(does, tree):
    one, two, three = (
        lines_of(DOES[does](params_of(tree, k * LAYERS))) for k in (1, 2, 3)
    )
    assert one > 1000
    assert abs(three - 2 * two + one) < 0.01 * three, (one, two, three)


def test_lines_are_counted():
    few, more = (
        lines_of(lambda n=n: om.matrices.by_path()(params_of("ragged", n)))
        for n in (1, 2)
    )
    assert 0 < few < more
