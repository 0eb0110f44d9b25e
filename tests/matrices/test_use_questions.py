"""What the use of parameters does not tell is asked once, with a line that answers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _uses.battery import A
from _uses.other_models import eqx_transformer
from _uses.questions import asked_of, pasted
from jax.experimental import pallas as pl

import optax_matrix as om
from optax_matrix.matrices import MatrixDimensionNumbers, by_use
from optax_matrix.matrices.decisions import decide

X = A(2, 4)


def with_head(f):
    """A function whose last layer is not what is asked about."""
    return lambda p, x: jnp.tanh(f(p, x)) @ p["fin"]


def softmax_router(p, x):
    return jax.nn.softmax(x @ p["gate"])[:, :1] * (x @ p["up"])


def bilinear(p, x):
    y = jnp.einsum("bi,eio->beo", x, p["w"])
    return jnp.einsum("be,beo->bo", x[:, 1:], y)


def other_axes(p, x):
    pairs = (x[:, :, None] * x[:, None]).reshape(-1, 16)
    y = pairs @ p["w"].reshape(16, 8)
    return y + jnp.tanh(jnp.einsum("bi,ijo->bjo", x, p["w"])).sum(1)


def kernel_of_pallas(p, x):
    def kernel(x, w, y):
        y[...] = x[...] @ w[...]

    out = jax.ShapeDtypeStruct((2, 8), jnp.float32)
    return pl.pallas_call(kernel, out_shape=out, interpret=True)(x, p["w"])


# By reason: the function, its parameters but for the last layer, which are asked about.
KINDS = {
    "a product of two parameters": (
        lambda p, x: x @ (p["a"] @ p["b"]),
        {"a": (4, 6), "b": (6, 8)},
        {"a", "b"},
    ),
    "a product with a constant, then with data": (
        lambda p, x: x @ (np.arange(24.0, dtype="f").reshape(4, 6) @ p["w"]),
        {"w": (6, 8)},
        {"w"},
    ),
    "bilinear": (
        bilinear,
        {"w": (3, 4, 8)},
        {"w"},
    ),
    "a router": (softmax_router, {"up": (4, 8), "gate": (4, 3)}, {"gate"}),
    "pallas_call": (kernel_of_pallas, {"w": (4, 8)}, {"w"}),
    "not used": (
        lambda p, x: x @ p["w"],
        {"w": (4, 8), "idle": (4, 8)},
        {"idle"},
    ),
    "cholesky": (
        lambda p, x: x @ jnp.linalg.cholesky(p["w"]) @ p["up"],
        {"w": (4, 4), "up": (4, 8)},
        {"w"},
    ),
    "two products with other axes": (
        other_axes,
        {"w": (4, 4, 8)},
        {"w"},
    ),
}


@pytest.mark.parametrize("reason", KINDS)
def test_the_line_of_a_question_works_when_pasted(reason):
    f, shapes, which = KINDS[reason]
    params = {name: A(*shape) for name, shape in shapes.items()} | {"fin": A(8, 3)}
    fn = with_head(f)
    rule, text = asked_of(fn, params, X)
    rows = re.findall(r"^ +r'\^(\w+)\$': .*  # \(.*\): (.*)$", text, re.MULTILINE)
    assert {path for path, _ in rows} == which
    assert all(reason in why for _, why in rows), text
    again = pasted(text, fn, params, X)  # A warning would be an error.
    assert again.numbers == rule.numbers
    other = {
        rf"^{path}$": MatrixDimensionNumbers(-1, -2) if i else None
        for i, path in enumerate(sorted(which, reverse=True), len(which) == 1)
    }
    answered = by_use(fn, params, X, numbers=other)
    views = {path: d.view for path, d in decide(params, answered).items()}
    for path in which:
        numbers = other[rf"^{path}$"]
        last = len(params[path].shape) - 1
        sides = views[path] and (views[path].reduction_axes, views[path].output_axes)
        assert sides == (numbers and ((last,), (last - 1,)))


@pytest.mark.broad
def test_a_type_of_layer_is_believed_before_names():
    """Projections of latents by Equinox's Linear are not asked about; latents are."""
    fn, params, inputs, _ = eqx_transformer()
    rule, text = asked_of(fn, params, *inputs)
    assert "^latents$" in text
    assert "query_proj" not in text
    numbers = dict(rule.numbers)["x/query_proj/weight"]
    assert (numbers.reduction_axis, numbers.output_axis) == (1, 0)


def test_alike_leaves_of_numbered_layers_are_one_row():
    names = [f"blocks/{i}/a.b" for i in range(12)]
    params = {name: A(4, 4) for name in names} | {"other/1/a.b": A(4, 4), "w": A(4, 3)}
    fn = lambda p, x: x @ p["w"]
    _, text = asked_of(fn, params, X)
    rows = re.findall(r"^ +r'.*$", text, re.MULTILINE)
    assert len(rows) == 2
    assert r"r'^blocks/\d+/a\.b$'" in text
    assert "12 of (4, 4): not used with data" in text
    pasted(text, fn, params, X)


def test_a_row_of_many_leaves_meets_no_other():
    idle = {f"blocks/{i}/w": A(4, 4) for i in range(3)}
    used = {"blocks/3/w": A(4, 4), "fin": A(4, 3)}
    fn = lambda p, x: x @ p["blocks/3/w"] @ p["fin"]
    _, text = asked_of(fn, idle | used, X)
    again = pasted(text, fn, idle | used, X)
    assert r"\d" not in text
    assert dict(again.numbers)["blocks/3/w"] == MatrixDimensionNumbers(0, 1)


def test_what_a_rule_for_the_rest_tells_is_not_asked():
    fn, params = lambda p, x: x @ p["w"], {"w": A(4, 8), "idle": A(4, 8)}
    rest = om.matrices.by_path(numbers={"idle": None})
    rule = by_use(fn, params, X, otherwise=rest)
    assert dict(rule.numbers)["idle"] is None
    assert rule.question() is None
    rest = om.matrices.by_path(table={"idle": None, "gone": None})
    with pytest.raises(ValueError, match=r"`table` must have paths .* gone"):
        by_use(fn, params, X, otherwise=rest)


def test_an_ordinary_model_asks_nothing():
    by_use(
        lambda p, x: jnp.tanh(x @ p["w"]) @ p["fin"], {"w": A(4, 8), "fin": A(8, 3)}, X
    )
