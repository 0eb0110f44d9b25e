"""The rule of `by_use`: static, restorable, and one question for what stays open."""

import json
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _uses.flax_models import linen_scan0, linen_scan1, nnx_lm
from _uses.other_models import eqx_transformer
from _uses.plain_models import gnn_gat, hypernet, relative_positions
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.matrices import MatrixDimensionNumbers, by_path, infer
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.use.rule import (
    ChangedUseWarning,
    UnclearUseWarning,
    by_use,
)

PARAMS = {
    "up": np.ones((8, 4), "f"),
    "down": np.ones((8, 8), "f"),
    "o": np.ones((3, 8), "f"),
}
X = np.ones((4, 2), "f")


def model(p, x):
    h = p["up"] @ x
    return p["o"] @ (h + jnp.tanh(p["down"] @ h))


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def test_two_traces_give_equal_rules_on_arrays_and_shapes():
    rule, again = by_use(model, PARAMS, X), by_use(model, shapes(PARAMS), shapes(X))
    assert rule == again
    assert hash(rule) == hash(again)
    turned = lambda p, x: model(p | {"down": p["down"].T}, x)
    assert rule != by_use(turned, PARAMS, X)


def test_inside_jit_and_under_sharding_the_rule_is_the_same():
    rule, found = by_use(model, PARAMS, X), []

    @jax.jit
    def init(params):
        found.append(by_use(model, params, X))
        return params

    jax.eval_shape(init, PARAMS)
    mesh = jax.make_mesh((2,), ("x",), (AxisType.Explicit,))
    whole = lambda x: jax.sharding.reshard(x, NamedSharding(mesh, P()))
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    params = {k: put(x, None, "x" if k == "up" else None) for k, x in PARAMS.items()}
    sharded = lambda p, x: model(jax.tree.map(whole, p), x)
    found.append(by_use(sharded, params, put(X, None, None)))
    for other in found:
        assert other.numbers == rule.numbers


def test_a_recipe_takes_the_rule_and_sees_its_sides():
    rule = by_use(model, PARAMS, X)
    numbers = dict(rule.numbers)
    assert numbers["up"] == MatrixDimensionNumbers(1, 0, residual="out")
    assert numbers["o"] is None
    tx = om.muon(0.02, dimension_numbers=rule)
    state = jax.eval_shape(tx.init, PARAMS)
    assert jax.eval_shape(tx.update, PARAMS, state, PARAMS)[0]["up"].shape == (8, 4)
    full = decide(PARAMS, om.matrices.with_embeddings(rule))
    assert full["o"].view.output_axes == (0,)


@pytest.mark.programs(16, "NNX draws the weights of the model")
def test_a_nnx_model_is_left_as_it_is():
    net = nnx.Sequential(
        nnx.Linear(4, 8, rngs=nnx.Rngs(0)),
        nnx.Dropout(0.5, rngs=nnx.Rngs(1)),
        nnx.BatchNorm(8, rngs=nnx.Rngs(0)),
        nnx.Linear(8, 3, rngs=nnx.Rngs(0)),
    )
    before = jax.tree.map(
        np.asarray, nnx.to_pure_dict(nnx.state(net, nnx.Not(nnx.RngKey)))
    )
    rule = by_use(net, X.T)
    loss = by_use(lambda net, x: net(x).sum(), net, X.T)
    after = jax.tree.map(
        np.asarray, nnx.to_pure_dict(nnx.state(net, nnx.Not(nnx.RngKey)))
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert loss.numbers == rule.numbers
    assert [path for path, numbers in rule.numbers if numbers] == ["layers/0/kernel"]


@pytest.mark.parametrize("make", [linen_scan0, linen_scan1])
def test_sides_and_layers_are_those_of_axis_names(make):
    fn, params, inputs, _ = make()
    used, named = (
        dict(by_use(fn, params, *inputs).numbers),
        decide(params, infer(params)),
    )
    for path, decision in named.items():
        if decision.view is not None:
            numbers = used[path]
            assert numbers.residual == decision.view.residual, path
            axes = decision.view.layer_axes
            assert axes is None or axes == (numbers.layer_axis,), path


def test_attention_tells_its_heads():
    fn, params, inputs, _ = nnx_lm()
    heads = {v.path: v.heads for v in by_use(fn, params, *inputs).verdicts if v.heads}
    assert set(heads.values()) == {4}
    assert all(re.search("query|key|value", path) for path in heads)


ASKING = [eqx_transformer, gnn_gat, hypernet, relative_positions]


@pytest.mark.parametrize("make", ASKING, ids=lambda make: make.__name__)
def test_the_line_of_a_question_works_when_pasted(make):
    fn, params, inputs, _ = make()
    with pytest.warns(UnclearUseWarning) as caught:
        rule = by_use(fn, params, *inputs)
    text = str(caught[0].message)
    assert len(caught) == 1
    line = re.search(r"by_use\(\.\.\., numbers=(\{.*\})\)", text, re.DOTALL)
    answers = eval(line[1], {"MatrixDimensionNumbers": MatrixDimensionNumbers})
    again = by_use(fn, params, *inputs, numbers=answers)  # Without a warning.
    assert again.numbers == rule.numbers


def test_an_unknown_primitive_asks_by_its_name():
    def solve(p, x):
        return p["o"] @ jnp.linalg.cholesky(p["down"]) @ (p["up"] @ x)

    with pytest.warns(UnclearUseWarning, match="down .*cholesky"):
        by_use(solve, PARAMS, X)


def test_what_is_not_used_asks():
    with pytest.warns(UnclearUseWarning, match=r"idle \(5, 5\): not used with data"):
        by_use(model, PARAMS | {"idle": np.ones((5, 5), "f")}, X)


def test_a_table_keeps_the_layout_where_a_trace_differs():
    rule = by_use(model, PARAMS, X)
    table = json.loads(json.dumps(rule.table()))
    assert dict(by_use(model, PARAMS, X, table=table).numbers) == dict(rule.numbers)
    assert decide(PARAMS, by_path(table=table)).keys() == PARAMS.keys()
    turned = lambda p, x: model(p | {"down": p["down"].T}, x)
    with pytest.warns(ChangedUseWarning, match=r"down \(now .*reduction_axis=0"):
        kept = by_use(turned, PARAMS, X, table=table)
    assert dict(kept.numbers) == dict(rule.numbers)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ([], "must be a dict of dimension numbers by path"),
        ({0: None}, "paths as its keys"),
        ({"up": {"reduction_axis": 0}}, "for 'up'"),
        ({"up": {"reduction_axis": 0, "output_axis": 1, "axes": 3}}, "for 'up'"),
        ({"up": "io"}, "for 'up'"),
    ],
)
def test_a_malformed_table_is_refused(table, match):
    with pytest.raises(ValueError, match=match):
        by_path(table=table)


def test_a_table_of_another_model_is_refused_at_init():
    table = by_use(model, PARAMS, X).table() | {"left/kernel": None}
    tx = om.muon(0.02, dimension_numbers=by_path(table=table))
    with pytest.raises(ValueError, match=r"`table` .* left/kernel"):
        tx.init(PARAMS)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="`fn` must be a function"):
        by_use(PARAMS, X)
    with pytest.raises(ValueError, match="`fn` must be a function"):
        by_use(model)


def test_an_ordinary_model_asks_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_use(model, PARAMS, X)
