"""`init` counts the parameters that nothing but their names tells what they are."""

import re
import runpy
import warnings
from pathlib import Path

import equinox as eqx
import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from _registry import RECIPES
from _uses.battery import is_right, letters
from _walks import walk

import optax_matrix as om
from optax_matrix._paths import named_leaves
from optax_matrix.matrices import DoubtfulMatrixWarning, ReadFromNamesWarning
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.doubts import doubts, read_from_names

FOREIGN = runpy.run_path(str(Path(__file__).parent / "models" / "foreign.py"))["MODELS"]
S = jax.ShapeDtypeStruct
NUMBERS = om.MatrixDimensionNumbers()


def tree(shapes):
    """A nested dict of abstract leaves from ``{path: shape}``."""
    out = {}
    for path, shape in shapes.items():
        node, (*front, last) = out, path.split("/")
        for key in front:
            node = node.setdefault(key, {})
        node[last] = S(shape, np.float32)
    return out


def counted(params, numbers=None):
    return set(read_from_names(params, decide(params, numbers)))


def said(params, numbers=None, make=om.muon):
    """The warnings of `init`, as pairs of class and text."""
    tx = make(0.1, dimension_numbers=numbers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "Matrices that start at zero")
        jax.eval_shape(tx.init, params)
    return [(w.category, str(w.message)) for w in caught]


LAYERS = {
    "token/embedding": (50, 8),
    "to_q/kernel": (8, 4, 2),
    "up/kernel": (8, 16),
    "up/bias": (16,),
    "down/kernel": (16, 8),
    "end/kernel": (8, 5),
    "bias": (3, 5),
}
LINE = (
    "Parameters read from names: 4 (bias, end/kernel, to_q/kernel, token/embedding). "
    "To read them from the model, pass dimension_numbers=om.matrices.by_use(loss, "
    "params, batch). To accept the names, pass "
    "dimension_numbers=om.matrices.by_names."
)


def test_the_line():
    params = tree(LAYERS)
    assert said(params) == [(ReadFromNamesWarning, LINE)]
    # Kernels of two axes are none of them, but for the last layer.
    want = {"token/embedding", "to_q/kernel", "end/kernel", "bias"}
    assert counted(params) == want
    one = om.matrices.by_path(exclude="embed|to_q|end")
    ((_, text),) = said(params, one)
    assert text.startswith("Parameters read from names: 1 (bias). To read")
    ((_, text),) = said(tree(LAYERS | {"w": (4, 3), "x/w": (3, 4)}))
    assert text.startswith("Parameters read from names: 6. To read them from")


@walk("name", RECIPES)
@pytest.mark.broad
def test_it_comes_once_for_each_recipe(name):
    assert said(tree(LAYERS), make=RECIPES[name]) == [(ReadFromNamesWarning, LINE)]


def test_doubts_and_the_count_are_one_warning():
    """Five doubts are named; a fused kernel of two axes is counted."""
    fused = {f"{x}/qkv_proj/kernel": (8, 24) for x in "abcdef"}
    for some, more in ((1, None), (5, None), (6, "  and 1 more")):
        params = tree(LAYERS | dict(list(fused.items())[:some]))
        ((kind, text),) = said(params)
        assert kind is DoubtfulMatrixWarning
        named = [line for line in text.splitlines() if "qkv_proj/kernel: 1x" in line]
        assert len(named) == min(some, 5)
        assert more is None or more in text.splitlines()
        assert text.splitlines()[-1].startswith(
            f"Parameters read from names: {4 + some}"
        )


@walk(
    "numbers",
    {
        "accepted": om.matrices.by_names,
        "excluded": om.matrices.by_path(exclude="bias|embedding|to_q|end"),
        "included": om.matrices.by_path(include="bias|embedding|to_q|end"),
        "numbers": om.matrices.by_path(numbers={"": NUMBERS}),
        "table": om.matrices.by_path(table=dict.fromkeys(LAYERS)),
        "otherwise": om.matrices.by_path(
            exclude="x|up", otherwise=om.matrices.by_names
        ),
        "tree": {"up": None, "down": None, "end": None, "bias": None, "token": NUMBERS}
        | {"to_q": NUMBERS},
        "made": "made",
        "full": om.matrices.with_embeddings(om.matrices.by_names),
    }.values(),
)
def test_what_is_given_is_not_counted(numbers):
    params = tree(LAYERS)
    numbers = om.matrices.by_path()(params) if numbers == "made" else numbers
    assert counted(params, numbers) == set()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReadFromNamesWarning)
        warnings.simplefilter("ignore", om.matrices.UnmatchedPatternWarning)
        jax.eval_shape(om.muon(0.1, dimension_numbers=numbers).init, params)


def test_the_full_model_is_read_from_names_too():
    numbers = om.matrices.with_embeddings(None)
    assert counted(tree(LAYERS), numbers) == counted(tree(LAYERS))


def test_accepted_names_are_read_as_by_default():
    params = tree(LAYERS)
    views = lambda numbers: [d.view for d in decide(params, numbers).values()]
    assert views(om.matrices.by_names) == views(None)
    full = om.matrices.with_embeddings
    assert views(full(om.matrices.by_names)) == views(full(om.matrices.by_path()))


def test_nothing_is_said_where_nothing_is_a_matrix():
    assert said(tree({"scale": (8,), "b": (3,)})) == []
    params = tree({"lm_head/kernel": (8, 16), "embedding": (4, 8)})
    ((_, text),) = said(params)
    assert text.startswith("No parameter is in a matrix")
    assert "read from names" not in text


@walk(
    ("certain", "shapes"),
    [
        (True, {"kernel": (8, 16)}),  # There is no other that could take its outputs.
        (True, {"a/kernel": (8, 16), "b/kernel": (16, 8)}),
        (True, {"key/kernel": (8, 4), "b/kernel": (8, 8)}),  # Fewer heads.
        (True, {"a/kernel": (8, 1), "b/kernel": (8, 8)}),
        (True, {"w": (1, 16, 1), "b/kernel": (8, 8)}),
        (False, {"a/kernel": (8, 16), "b/kernel": (8, 8)}),
        (False, {"a/kernel": (8, 3), "c/kernel": (3, 3, 8, 8)}),
        (False, {"w": (8, 16)}),
        (False, {"gate/kernel": (8, 4), "a/kernel": (8, 16), "b/kernel": (16, 8)}),
        (False, {"end/kernel": (8, 50), "embedding": (50, 8), "b/kernel": (8, 8)}),
        (False, {"conv/kernel": (3, 3, 1, 16)}),
        (False, {"lm_head/kernel": (8, 4, 16)}),
        (False, {"a/kernel": (3, 8, 16)}),
    ],
)
def test_what_is_certain(certain, shapes):
    assert (next(iter(shapes)) not in counted(tree(shapes))) == certain


def test_types_and_axis_names_are_certain():
    make = lambda key: [
        eqx.nn.Linear(4, 8, key=key),
        eqx.nn.Conv2d(4, 8, 3, key=key),
        eqx.nn.LSTMCell(4, 8, key=key),
    ]
    params = {"layers": eqx.filter_eval_shape(make, jax.random.key(0))}
    params = eqx.filter(params, lambda x: hasattr(x, "shape"))
    assert counted(params) == set()
    box = lambda *names: nn.LogicallyPartitioned(S((3, 4, 8), np.float32), names)
    boxes = {
        "wi": box("layers", "embed", "mlp"),
        "norm": {"scale": box("layers", "batch", "embed")},
        "other": box("fsdp", None, "tp"),
    }
    assert counted(boxes) == {"other"}
    assert counted(nn.unbox(boxes), om.matrices.infer(boxes)) == {"other"}
    assert counted(nn.unbox(boxes)) == {"wi", "norm/scale", "other"}


def test_masked_trees_have_the_line_too():
    params = tree({"conv/kernel": (3, 3, 4, 8), "embedding": (50, 4)})
    rule = om.matrices.by_path(exclude="embedding")
    parts = {"matrix": om.scale_by_muon(), "other": optax.sgd(1.0)}
    tx = optax.partition(parts, om.matrices.label_params(rule))
    with pytest.warns(ReadFromNamesWarning, match="Parameters read from names: 1 "):
        jax.eval_shape(tx.init, params)


def wrong(model, numbers=None):
    """The leaves of a foreign tree that are read otherwise than right."""
    leaves = FOREIGN[model]
    rule = om.matrices.by_path(numbers=numbers)
    is_leaf = lambda x: x is None or isinstance(x, om.MatrixDimensionNumbers)
    found = named_leaves(rule(foreign(model)), is_leaf)
    is_wrong = lambda path, shape, want: (
        want and not is_right(letters(found.get(path), shape), want, shape)
    )
    return {
        path for path, (shape, want) in leaves.items() if is_wrong(path, shape, want)
    }


def foreign(model):
    return tree({path: shape for path, (shape, _) in FOREIGN[model].items()})


@walk("model", FOREIGN)
def test_a_leaf_that_is_not_right_is_counted(model):
    assert wrong(model) <= counted(foreign(model))


@walk("model", [x for x in FOREIGN if re.match("LoRA|Bayesian|Fourier", x)])
def test_kernels_pairs_and_spreads_are_right(model):
    assert wrong(model) == set()


@walk("model", [x for x in FOREIGN if re.search("PyTorch, |of PyTorch$", x)])
def test_weights_of_pytorch_are_asked_and_the_line_settles_it(model):
    params = foreign(model)
    found = {p: x for p, x in doubts(params, decide(params)).items() if "PyTorch" in x}
    asked = {p for p in wrong(model) if p.endswith("/weight") and "/weight/" not in p}
    assert asked <= set(found)
    numbers = {}
    for clause in found.values():
        line = clause.partition("numbers=")[2]
        numbers |= eval(line, {"MatrixDimensionNumbers": om.MatrixDimensionNumbers})
    assert not asked & wrong(model, numbers)


def test_a_typed_layer_is_no_stack_of_vectors():
    make = lambda key: eqx.nn.Linear(8, 8, use_bias=False, key=key)
    layer = eqx.filter_eval_shape(make, jax.random.key(0))
    spectral = {"real": S((8, 8, 4), np.float32), "imag": S((8, 8, 4), np.float32)}
    for params in (
        {"bypass": layer, **spectral},
        {"bypass": tree({"w": (8, 8), "b": (8,)}), **spectral},
    ):
        path = next(p for p in decide(params) if p.startswith("bypass/w"))
        assert decide(params)[path].view is not None
