"""The rule of `by_use`: static, restorable, and of the parameters that it was given."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _uses.flax_models import nnx_lm
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.matrices import (
    ChangedUseWarning,
    MatrixDimensionNumbers,
    by_path,
    by_use,
)
from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.use import verdicts

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


@pytest.mark.broad
def test_attention_tells_its_heads():
    fn, params, inputs, _ = nnx_lm()
    heads = {v.path: v.heads for v in by_use(fn, params, *inputs).verdicts if v.heads}
    assert set(heads.values()) == {4}
    assert all(re.search("query|key|value", path) for path in heads)


def test_a_table_keeps_the_layout_where_a_trace_differs():
    rule = by_use(model, PARAMS, X)
    table = json.loads(json.dumps(rule.table()))
    assert by_use(model, PARAMS, X, table=table).numbers == rule.numbers
    turned = lambda p, x: model(p | {"down": p["down"].T}, x)
    says = r"another way than `table`: down \(1, 0\), now \(0, 1\)\. The"
    with pytest.warns(ChangedUseWarning, match=says):
        kept = by_use(turned, PARAMS, X, table=table)
    assert kept.numbers == rule.numbers
    more = PARAMS | {"more": np.ones((8, 8), "f")}
    deeper = lambda p, x: p["o"] @ jnp.tanh(p["more"] @ (p["up"] @ x))
    del more["down"]
    table = {path: row for path, row in table.items() if path != "down"}
    with pytest.warns(ChangedUseWarning, match=r"more not at all, now \(1, 0"):
        by_use(deeper, more, X, table=table)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_resumed_run_has_the_layout_of_its_table(monkeypatch, wrong):
    """Also where a later version of the trace reads matrices otherwise."""
    rule = by_use(model, PARAMS, X)
    table = json.loads(json.dumps(rule.table()))
    state = jax.eval_shape(om.muon(0.02, dimension_numbers=rule).init, PARAMS)
    if wrong:
        numbers_of = verdicts.numbers_of

        def turned(*args):
            found = numbers_of(*args)
            sides = found.output_axis, found.reduction_axis
            return MatrixDimensionNumbers(*sides, output_sections=2)

        monkeypatch.setattr(verdicts, "numbers_of", turned)
        with pytest.warns(ChangedUseWarning, match="down .*; up "):
            resumed = by_use(model, PARAMS, X, table=table)
        tx = om.muon(0.02, dimension_numbers=by_use(model, PARAMS, X))
        assert layout(jax.eval_shape(tx.init, PARAMS)) != layout(state)
    else:
        resumed = by_use(model, PARAMS, X, table=table)
    for again in (resumed, by_path(table=table)):
        tx = om.muon(0.02, dimension_numbers=again)
        assert layout(jax.eval_shape(tx.init, PARAMS)) == layout(state)


def layout(state):
    return [
        (jax.tree_util.keystr(k), x.shape) for k, x in jax.tree.leaves_with_path(state)
    ]


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ([], "must be a dict of dimension numbers by path"),
        ("{}", "must be a dict of dimension numbers by path"),
        ({0: None}, "paths as its keys"),
        ({"up": {"reduction_axis": 0}}, "for 'up'"),
        ({"up": {"reduction_axis": 0, "output_axis": 1, "axes": 3}}, "for 'up'"),
        (
            {"up": {"reduction_axis": "i", "output_axis": 1}},
            "for 'up': `reduction_axis`",
        ),
        ({"up": {"reduction_axis": 0, "output_axis": 2, "shape": [4, 8]}}, "for 'up'"),
        ({"up": {"reduction_axis": 0, "output_axis": 1, "shape": 4}}, "for 'up'"),
        (
            {"up": {"reduction_axis": 0, "output_axis": 1, "output_sections": 1.5}},
            "for 'up'",
        ),
        ({"up": "io"}, "for 'up'"),
    ],
)
def test_a_malformed_table_is_refused(table, match):
    with pytest.raises(ValueError, match=match):
        by_path(table=table)
    with pytest.raises(ValueError, match=match):
        by_use(model, PARAMS, X, table=table)


def test_a_table_of_another_model_is_refused():
    table = by_use(model, PARAMS, X).table()
    with pytest.raises(ValueError, match=r"`table` .* left/kernel"):
        by_use(model, PARAMS, X, table=table | {"left/kernel": None})
    for wrong, match in (
        (table | {"left/kernel": None}, "only, got left/kernel"),
        ({p: x for p, x in table.items() if p != "up"}, "no entry for 'up' of shape"),
    ):
        tx = om.muon(0.02, dimension_numbers=by_path(table=wrong))
        with pytest.raises(ValueError, match=f"`table` must .*{match}"):
            tx.init(PARAMS)
    part = by_path(table={"up": None}, otherwise=by_path())
    assert decide(PARAMS, part)["down"].view is not None


MISFITS = {
    "no entry for 'extra'": PARAMS | {"extra": np.ones((4, 4), "f")},
    r"'down' with shape \(8, 8\), not \(3, 8, 8\)": {
        name: np.stack([x] * 3) for name, x in PARAMS.items()
    },
    r"'up' with shape \(8, 4\), not \(4, 8\)": PARAMS | {"up": np.ones((4, 8), "f")},
    "no entry for 'model/down'": {"model": PARAMS},
}


@pytest.mark.parametrize("match", MISFITS)
def test_leaves_that_the_trace_has_not_seen_are_refused(match):
    """Copies in a stack, other shapes, another root: not read by their names."""
    rule, params = by_use(model, PARAMS, X), MISFITS[match]
    table = by_path(table=rule.table())
    for again in (rule, by_path(exclude="none", otherwise=rule), table):
        with pytest.raises(ValueError, match=match):
            decide(params, again)
        with pytest.raises(ValueError, match=match):
            om.matrices.label_params(again)(params)
    if "extra" in match:
        rule = by_use(model, PARAMS, X, otherwise=by_path())
        assert decide(params, rule)["extra"].view is not None
        rule = by_path(numbers={"extra": None}, otherwise=by_use(model, PARAMS, X))
        assert decide(params, rule)["extra"].view is None
    vectors = PARAMS | {"bias": np.ones(8, "f"), "scale": np.ones((1, 8, 1), "f")}
    assert decide(vectors, by_use(model, PARAMS, X))["bias"].view is None


@pytest.mark.parametrize("inside", [False, True])
def test_the_root_of_linen_is_no_part_of_a_path(inside):
    """Neither for the rule nor for its table, and in either direction."""
    of = lambda p: {"params": p}
    fn = model if not inside else lambda p, x: model(p["params"], x)
    rule = by_use(fn, of(PARAMS) if inside else PARAMS, X)
    wanted = decide(of(PARAMS) if inside else PARAMS, rule)
    for again in (rule, by_path(table=rule.table())):
        found = decide(PARAMS if inside else of(PARAMS), again)
        assert [d.view for d in found.values()] == [d.view for d in wanted.values()]
        tx = om.muon(0.02, dimension_numbers=again)
        jax.eval_shape(tx.init, PARAMS if inside else of(PARAMS))
    by_use(model, PARAMS, X, table=rule.table())


def test_parts_of_a_tree_are_read_as_the_whole_is():
    rule = by_use(model, PARAMS, X)
    parts = {
        "first": om.muon(0.02, dimension_numbers=rule),
        "other": om.aro(0.02, dimension_numbers=rule),
    }
    labels = {"up": "first", "down": "other", "o": "other"}
    tx = optax.partition(parts, labels)
    state = jax.eval_shape(tx.init, PARAMS)
    jax.eval_shape(tx.update, PARAMS, state, PARAMS)
    masked = optax.masked(
        om.muon(0.02, dimension_numbers=rule), {"up": True, "down": False, "o": True}
    )
    jax.eval_shape(masked.init, PARAMS)


def test_members_of_a_vmap_and_shards_of_a_mesh_have_the_rule_of_the_whole():
    rule = by_use(model, PARAMS, X)
    tx = om.muon(0.02, dimension_numbers=rule)
    stacked = {name: np.stack([x] * 3) for name, x in PARAMS.items()}
    jax.eval_shape(jax.vmap(tx.init), stacked)
    mesh, found = jax.make_mesh((2,), ("x",), (AxisType.Auto,)), {}

    def local(params):
        found.update(decide(params, rule))
        found.update(decide(params, by_path(table=rule.table())))
        return params

    specs = {"up": P("x"), "down": P(None, "x"), "o": P()}
    one = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=specs)
    jax.eval_shape(one, PARAMS)
    assert found["up"].view.shape == (4, 4)
    assert found["up"].view.output_axes == (0,)


def test_python_numbers_are_options():
    def fn(p, x, size, *, depth=1, deterministic=False):
        h = x.T.reshape(-1, size)
        for _ in range(depth if deterministic else 0):
            h = jnp.tanh(h @ p["up"].T) @ p["o"].T
        return h @ p["head"]

    params = {
        "up": PARAMS["up"],
        "o": np.ones((4, 8), "f"),
        "head": np.ones((4, 5), "f"),
    }
    rule = by_use(fn, params, X, 4, depth=2, deterministic=True)
    assert dict(rule.numbers)["up"] is not None


def test_wrong_arguments_are_refused():
    twice = {"a/b": np.ones((4, 4), "f"), "a": {"b": np.ones((4, 4), "f")}}
    for args, match in (
        ((PARAMS, X), "`fn` must be a function"),
        ((model,), "`fn` must be a function"),
        ((lambda p: model(p, X), PARAMS), "by_use` must get the inputs.*closes over"),
        ((lambda p, n: model(p, X * n), PARAMS, 3), "by_use` must get the inputs"),
        ((lambda p, x: (p, x), twice, X), "a path of its own, got 2 with 1"),
        ((lambda p, x: (p, x), {"n": 3}, X), "arrays of floats, .*got 0"),
    ):
        with pytest.raises(ValueError, match=match):
            by_use(*args)


def test_a_random_key_may_be_among_the_inputs():
    def noisy(p, x, key):
        return model(p, x + jax.random.normal(key, x.shape))

    rule = by_use(noisy, PARAMS, X, jax.random.key(0))
    assert [p for p, numbers in rule.numbers if numbers] == ["down", "up"]
