"""What is believed first: numbers by path, axis names, use, type of layer, names."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _uses.battery import A
from _uses.flax_models import linen_scan0, linen_scan1
from _uses.questions import asked_of, pasted
from flax import linen as nn

import optax_matrix as om
from optax_matrix.matrices import MatrixDimensionNumbers, by_use, infer
from optax_matrix.matrices.decisions import decide


def named(shape, *names):
    """An array with logical axis names."""
    return nn.LogicallyPartitioned(A(*shape), names)


def value(x):
    return x.value if isinstance(x, nn.LogicallyPartitioned) else x


def unboxed(f):
    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)
    return lambda p, x: f(jax.tree.map(value, p, is_leaf=is_box), x)


@unboxed
def mlp(p, x):
    return jnp.tanh(x @ p["up"]) @ p["fin"]


X, FIN = A(2, 4), A(8, 3)


def numbers_of(rule, path):
    found = dict(rule.numbers)[path]
    return found and (found.reduction_axis, found.output_axis)


@pytest.mark.broad
@pytest.mark.parametrize("make", [linen_scan0, linen_scan1])
def test_sides_and_layers_are_those_of_axis_names(make):
    """Both from use alone, and from both; no question."""
    fn, params, inputs, _ = make()
    rule = by_use(fn, params, *inputs)
    used = {v.path: v.numbers for v in rule.verdicts if v.kind == "matrix"}
    both, names = decide(params, rule), decide(params, infer(params))
    for path, decision in names.items():
        view = decision.view
        if view is not None:
            assert used[path].residual == view.residual, path
            assert view.layer_axes in (None, (used[path].layer_axis,)), path
            assert both[path].view == view
            assert both[path].view.layer_axes == view.layer_axes
            assert both[path].reason.startswith("axes")


def test_axis_names_are_believed_before_use_and_where_they_differ_is_asked():
    params = {"up": named((4, 8), "mlp", "embed"), "fin": FIN}
    turned = unboxed(lambda p, x: jnp.tanh(x @ p["up"].T) @ p["fin"])
    by_use(mlp, params, X)
    params["fin"] = A(4, 3)
    rule, text = asked_of(turned, params, A(2, 8))
    assert numbers_of(rule, "up") == (0, 1)
    assert re.search(r"'embed'\) say \(0, 1, .*\), its use says \(1, 0\)", text)
    assert numbers_of(pasted(text, turned, params, A(2, 8)), "up") == (0, 1)
    answer = {"up": MatrixDimensionNumbers(1, 0)}
    told = by_use(turned, params, A(2, 8), numbers=answer)
    assert numbers_of(told, "up") == (1, 0)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("vocab", "embed"), "no matrix, its use says (0, 1)"),
        (("embed", "expert"), "no matrix, its use says (0, 1)"),
    ],
)
def test_axis_names_that_say_no_matrix_are_asked_about(names, says):
    rule, text = asked_of(mlp, {"up": named((4, 8), *names), "fin": FIN}, X)
    assert says in text
    assert numbers_of(rule, "up") is None


def test_a_last_layer_is_asked_about_if_its_axes_say_matrix():
    params = {"up": A(4, 8), "fin": named((8, 3), "mlp", "embed")}
    rule, text = asked_of(mlp, params, X)
    assert "its use says last layer" in text
    assert numbers_of(rule, "fin") == (0, 1)
    params["fin"] = named((8, 3), "embed", "vocab")
    rule = by_use(mlp, params, X)
    assert numbers_of(rule, "fin") is None


def test_axis_names_end_what_use_leaves_open():
    params = {"idle": named((5, 6), "embed", "mlp"), "up": A(4, 8), "fin": FIN}
    rule = by_use(mlp, params, X)
    assert numbers_of(rule, "idle") == (0, 1)


def test_use_adds_what_axis_names_leave_open():
    def fn(p, x):
        gate, up = jnp.split(x @ p["wi"], 2, -1)
        return (x + (jax.nn.silu(gate) * up) @ p["wo"]) @ p["fin"]

    shapes = {"wi": (4, 16), "wo": (8, 4)}
    params = {
        "wi": named(shapes["wi"], "embed", "mlp"),
        "wo": named(shapes["wo"], "mlp", None),
        "fin": A(4, 3),
    }
    numbers = dict(by_use(unboxed(fn), params, X).numbers)
    assert numbers["wi"].output_sections == 2
    assert numbers["wi"].residual == "in"
    assert numbers["wo"].residual == "out"  # By its use.


def test_names_yield_to_use_silently():
    """By its name this is an output head, and no embedding is one."""
    fn = lambda p, x: jnp.tanh(p["lm_head"] @ x) @ p["table"]
    rule = by_use(fn, {"lm_head": A(8, 4), "table": A(2, 3)}, A(4, 2))
    assert numbers_of(rule, "lm_head") == (1, 0)
    assert numbers_of(rule, "table") is None


def test_a_type_of_layer_that_differs_is_asked_about():
    layer = eqx.filter_eval_shape(
        lambda: eqx.nn.Linear(4, 8, use_bias=False, key=jax.random.key(0))
    )
    fn = lambda p, x: jnp.tanh(x @ p["up"].weight) @ p["fin"]
    params = {"up": layer, "fin": A(4, 3)}
    rule, text = asked_of(fn, params, A(2, 8))
    assert "its layer says (1, 0), its use (0, 1)" in text
    assert numbers_of(rule, "up/weight") == (0, 1)
    pasted(text, fn, params, A(2, 8))


def test_a_named_batch_axis_in_a_matrix_is_refused():
    fn = unboxed(lambda p, x: jnp.einsum("ebi,eio->ebo", x, p["up"]) @ p["fin"])
    params = {"up": named((3, 4, 8), "expert", "embed", "mlp"), "fin": FIN}
    numbers = {"up": MatrixDimensionNumbers((0, 1), 2)}
    rule = by_use(fn, params, A(3, 2, 4), numbers=numbers)
    with pytest.raises(ValueError, match=r"leave out those that count.*'expert'"):
        decide(params, rule)
    decide(params, by_use(fn, params, A(3, 2, 4)))


@pytest.mark.parametrize("wrap", [lambda rule: rule, lambda r: by_path_of(r)])
def test_last_layers_by_use_are_matrices_on_request(wrap):
    """A recipe's ``last_layer="method"`` asks for the head, and not for embeddings."""
    fn = lambda p, i: jnp.tanh(p["a"][i] @ p["b"]) @ p["c"]
    params = {"a": A(9, 4), "b": A(4, 8), "c": A(8, 3), "lm_head": A(1, 9)}
    rule = wrap(by_use(fn, params, jax.ShapeDtypeStruct((2,), jnp.int32)))
    of = lambda rule: {p for p, d in decide(params, rule).items() if d.view}
    assert of(rule) == {"b"}
    assert of(om.matrices.heads_as_matrices(rule)) == {"b", "c"}
    assert of(om.matrices.with_embeddings(rule)) == {"a", "b", "c"}
    split = om.matrices.split_heads(rule)
    assert of(om.matrices.heads_as_matrices(split)) == {"b", "c"}
    last = om.galore(0.1, rank=2, last_layer="method", dimension_numbers=rule)
    with_head = om.matrices.heads_as_matrices(rule)
    same = om.galore(0.1, rank=2, dimension_numbers=with_head)
    states = [jax.eval_shape(tx.init, params) for tx in (last, same)]
    assert str(states[0]) == str(states[1])


def by_path_of(rule):
    return om.matrices.by_path(otherwise=rule)


def attention(p, x):
    q, k, v = (jnp.reshape(x @ p[n], (*x.shape[:2], 2, 3)) for n in ("q", "k", "v"))
    y = jax.nn.dot_product_attention(q, k, v).reshape(*x.shape[:2], 6)
    return (x + y @ p["o"]) @ p["fin"]


def fused_attention(p, x):
    q, k, v = jnp.unstack(jnp.reshape(x @ p["read"], (*x.shape[:2], 3, 2, 3)), axis=2)
    y = jax.nn.dot_product_attention(q, k, v).reshape(*x.shape[:2], 6)
    return (x + y @ p["o"]) @ p["fin"]


@pytest.mark.parametrize(
    ("fn", "readers", "view"),
    [
        (attention, {"q": (4, 6), "k": (4, 6), "v": (4, 6)}, "2x (3, 4)"),
        (fused_attention, {"read": (4, 18)}, "6x (3, 4)"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda rule: rule, lambda r: by_path_of(r)])
def test_the_number_of_heads_comes_from_use(fn, readers, view, wrap):
    params = {name: A(*shape) for name, shape in readers.items()}
    params |= {"o": A(6, 4), "fin": A(4, 5)}
    rule = om.matrices.split_heads(wrap(by_use(fn, params, A(2, 7, 4))))
    views = {row.leaf: row.view for row in om.describe(params, rule).rows}
    assert {views[name] for name in readers} == {view}
    assert views["o"] == "1x (4, 6)"
    tx = om.muon(
        0.1, heads="split", dimension_numbers=wrap(by_use(fn, params, A(2, 7, 4)))
    )
    jax.eval_shape(tx.init, params)


def test_describe_shows_what_use_says():
    params = {"up": A(4, 8), "fin": FIN, "table": A(9, 4), "scale": A(8)}
    fn = lambda p, i: (jnp.tanh(p["table"][i] @ p["up"]) * p["scale"]) @ p["fin"]
    rule = by_use(fn, params, jax.ShapeDtypeStruct((2,), jnp.int32))
    found = om.describe(params, rule)
    why = {row.leaf: row.why for row in found.rows}
    assert why == {
        "fin": "last layer: product (0) to (1), nothing learned comes after",
        "scale": "vector: elementwise (mul)",
        "table": "table: lookup, rows are looked up",
        "up": "matrix: product (0) to (1)",
    }
    assert found.shares["embeddings and heads"] == 9 * 4 + 8 * 3


def test_equal_numbers_are_equal_however_they_are_written():
    params = {"up": np.ones((4, 8), "f"), "fin": np.ones((8, 3), "f")}
    fn = lambda p, x: jnp.tanh(x @ p["up"]) @ p["fin"]
    for numbers in (
        MatrixDimensionNumbers(-2, -1),
        MatrixDimensionNumbers([0], [1]),
        optax.contrib.MuonDimensionNumbers([0], [1]),
        optax.contrib.MuonDimensionNumbers(-2, 1),
    ):
        rule = by_use(fn, params, X, numbers={"up": numbers})
        hash(rule)
        assert rule.numbers == by_use(fn, params, X).numbers
        by_use(fn, params, X, numbers={"up": numbers}, table=rule.table())
        by_use(fn, params, X, table={"up": numbers, "fin": None})
