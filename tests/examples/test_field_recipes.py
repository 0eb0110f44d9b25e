"""The recipes of the field are their sources' formulas, on every leaf of a small model.

Each formula is restated in NumPy and float64 as its source writes it
(`_reference.field`), without what a docstring says is not reproduced.
"""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _reference import field as ref

from examples import field_recipes

D = 6
SHAPES = {
    "embed/embedding": (10, D),
    "attn/query/kernel": (D, 2, 3),
    "attn/out/kernel": (2, 3, D),
    "mlp/up/kernel": (D, 8),
    "mlp/up/bias": (8,),
    "router/kernel": (D, 4),
    "lm_head/kernel": (D, 10),
}
# A first gradient of full rank leaves no null space, whose basis would be arbitrary.
SQUARE = SHAPES | {"mlp/up/kernel": (D, D), "mlp/up/bias": (D,)}
KERNELS = ("attn/query/kernel", "attn/out/kernel", "mlp/up/kernel")
ROUTED = (*KERNELS, "router/kernel")
KV_B = "attn/kv_b/kernel"


def clipped(grads, names=tuple(SHAPES)):
    norm = np.sqrt(sum(np.sum(grads[name] ** 2) for name in names))
    assert norm > 1
    return grads | {name: grads[name] / norm for name in names}


def clipped_others(grads):
    return clipped(grads, [name for name in grads if name not in KERNELS])


@dataclass(frozen=True)
class Case:
    tx: Any
    matrix: Callable
    other: Callable
    matrices: tuple = KERNELS
    split: bool = False
    square: bool = False
    kv_b: tuple[int, int] | None = None  # Sizes of a head's key and value.
    before: Callable = lambda grads: grads
    rtol: float = 1e-9


RATE = 3e-3
PLAIN = {"look": ref.averaged, "nesterov": False}
K2 = ref.muon(RATE, 0.1, ref.JORDAN * 5, lambda w: 0.2 * ref.root_max(w), b=0.95)
CASES = {
    "nvidia_muon": Case(
        field_recipes.nvidia_muon(RATE),
        ref.muon(
            RATE,
            0.1,
            ref.NVIDIA_POLAR_EXPRESS,
            lambda w: np.sqrt(0.1 / 1.9) * ref.root_max(w),
            b=0.9,
            **PLAIN,
        ),
        ref.adamw(RATE, decay=0.1, vectors=False),
    ),
    "nvidia_kl_soap": Case(
        field_recipes.nvidia_kl_soap(RATE),
        ref.kl_soap,
        ref.adamw(RATE, decay=0.1, vectors=False),
        square=True,
    ),
    "marin_hero": Case(field_recipes.marin_hero(), ref.marin_matrix, ref.marin_other),
    "kimi_k3": Case(
        field_recipes.kimi_k3(RATE, kv_b=(3, 2)),
        K2,
        ref.adamw(RATE, decay=0.1, vectors=False),
        matrices=(*ROUTED, KV_B),
        split=True,
        kv_b=(3, 2),
    ),
    "glm_5": Case(
        field_recipes.glm_5(RATE),
        K2,
        ref.adamw(RATE, decay=0.1, vectors=False),
        split=True,
    ),
    "deepseek_v4": Case(
        field_recipes.deepseek_v4(RATE),
        ref.muon(
            RATE,
            0.1,
            ref.JORDAN * 8 + [(2, -1.5, 0.5)] * 2,
            lambda w: 0.18 * ref.root_max(w),
            b=0.95,
        ),
        ref.adamw(RATE, eps=1e-20, decay=0.1),
        matrices=ROUTED,
    ),
    "megatron_muon": Case(
        field_recipes.megatron_muon(RATE),
        ref.muon(RATE, 0.01, ref.QUINTIC, ref.root_max, b=0.95, **PLAIN),
        ref.adamw(RATE, b2=0.999, decay=0.01, vectors=False),
        before=clipped,
    ),
    "torchtitan_kimi_k2": Case(
        field_recipes.torchtitan_kimi_k2(RATE),
        K2,
        ref.adamw(RATE, decay=0.1),
        matrices=ROUTED,
        split=True,
    ),
    "modded_nanogpt": Case(
        field_recipes.modded_nanogpt(), ref.normuon, ref.adam_of_nanogpt
    ),
    "modded_nanogpt_track_3": Case(
        field_recipes.modded_nanogpt_track_3(),
        ref.soap_muon,
        ref.adam_of_track_3,
        square=True,
    ),
    "maxtext_muon": Case(  # Without the bias correction of the look-ahead.
        field_recipes.maxtext_muon(RATE),
        ref.muon(RATE, 0.0, ref.JORDAN * 5, ref.out_over_in, b=0.95),
        ref.adamw(RATE, decay=0.1, nesterov=True),
        matrices=ROUTED,
    ),
    "levanter_muon": Case(
        field_recipes.levanter_muon(RATE),
        ref.muon(RATE, 0.0, ref.QUINTIC, ref.out_over_in, b=0.95),
        ref.adamw(6e-4),
        before=clipped_others,
    ),
}


def arrays(shapes, seed, scale=0.3):
    rng = np.random.default_rng(seed)
    return {name: scale * rng.normal(size=shape) for name, shape in shapes.items()}


def views(name, x, split, kv_b=None):
    """The matrices of a kernel, outputs in the rows; writing to them writes to it."""
    if name == KV_B:
        parts = slice(kv_b[0]), slice(kv_b[0], None)
        return [x[:, head, part].T for head in range(2) for part in parts]
    if name == "attn/query/kernel":
        return [x[:, h].T for h in range(2)] if split else [x.reshape(D, -1).T]
    return [x.reshape(-1, D).T if name == "attn/out/kernel" else x.T]


def restated(case, params, stream):
    state = defaultdict(dict)
    for grads in map(case.before, stream):
        new = {name: np.empty_like(w) for name, w in params.items()}
        for name, w in params.items():
            if name not in case.matrices:
                new[name] = case.other(name, w, grads[name], state[name])
                continue
            view = partial(views, name, split=case.split, kv_b=case.kv_b)
            seen = (view(x[name]) for x in (new, params, grads))
            for i, (target, matrix, g) in enumerate(zip(*seen, strict=True)):
                target[...] = case.matrix(matrix, g, state[name, i])
        params = new
    return params


def run(tx, params, stream):
    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(tx.init)(params)
    for grads in stream:
        params, state = step(params, state, grads)
    return params


@pytest.mark.quick("maxtext_muon", "levanter_muon")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_a_line_is_the_formula_of_its_source(name):
    case = CASES[name]
    shapes = SQUARE if case.square else SHAPES
    if case.kv_b:
        shapes = shapes | {KV_B: (4, 2, sum(case.kv_b))}
    params = arrays(shapes, 0)
    stream = [arrays(shapes, seed) for seed in (1, 2, 3)]
    expected = restated(case, params, stream)
    found = jax.device_get(run(case.tx, params, stream))
    for leaf, w in params.items():
        np.testing.assert_allclose(
            found[leaf] - w, expected[leaf] - w, rtol=case.rtol, atol=1e-9, err_msg=leaf
        )


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_maxtexts_line_becomes_optaxs_muon():
    """Optax corrects the bias of its look-ahead, which matters in the first steps."""
    shapes = {"up/kernel": (D, 8), "router/kernel": (D, 4)}
    params = jax.tree.map(jnp.asarray, arrays(shapes, 0))
    theirs = optax.contrib.muon(RATE, beta=0.95, adam_b2=0.95, adam_weight_decay=0.1)
    ours = field_recipes.maxtext_muon(RATE)

    def step(states, grads):
        a, first = theirs.update(grads, states[0], params)
        b, second = ours.update(grads, states[1], params)
        apart = optax.tree.norm(jax.tree.map(jnp.subtract, a, b)) / optax.tree.norm(a)
        return (first, second), apart

    stream = [arrays(shapes, seed) for seed in range(1, 101)]
    grads = jax.tree.map(lambda *x: jnp.stack(x), *stream)
    _, apart = jax.lax.scan(step, (theirs.init(params), ours.init(params)), grads)
    assert apart[0] < 1e-5
    assert 0.01 < max(apart[1:10]) < 0.5
    assert max(apart[-10:]) < 5e-3


def levanters_layers(leaves):
    """Levanter's layers, outputs first."""
    hax = pytest.importorskip("haliax")

    def linear(weight, bias=None):
        axes = hax.Axis("out", weight.shape[1]), hax.Axis("in", weight.shape[0])
        weight = hax.named(jnp.asarray(weight.T), axes)
        bias = bias if bias is None else hax.named(jnp.asarray(bias), axes[:1])
        return hax.nn.Linear(weight, bias, axes[1], axes[0])

    up = linear(leaves["mlp/up/kernel"], leaves["mlp/up/bias"])
    return {"up": up, "lm_head": linear(leaves["lm_head/kernel"])}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["levanter_muon", "marin_hero"])
def test_a_line_is_levanters_code(name):
    """The one of Marin is Levanter's MuonH with Marin's numbers."""
    muon = pytest.importorskip("levanter.optim.muon")
    muonh = pytest.importorskip("levanter.optim.muonh")
    steady = {"warmup": 0.0, "lr_schedule": "constant"}
    marin = {"learning_rate": 0.003291, "adam_lr": 0.000759, "epsilon": 6.04e-15}
    if name == "marin_hero":
        config = muonh.MuonHConfig(max_grad_norm=None, **marin, **steady)
    else:
        config = muon.MuonConfig(learning_rate=RATE, **steady)
    shapes = {k: x for k, x in SHAPES.items() if k[:2] in ("ml", "lm")}
    stream = [arrays(shapes, seed) for seed in (1, 2, 3)]
    before = arrays(shapes, 0)
    found = run(CASES[name].tx, jax.tree.map(jnp.asarray, before), stream)
    tx, params = config.build(10), levanters_layers(before)
    after = run(tx, params, map(levanters_layers, stream))
    theirs = {
        "mlp/up/kernel": after["up"].weight.array.T,
        "mlp/up/bias": after["up"].bias.array,
        "lm_head/kernel": after["lm_head"].weight.array.T,
    }
    for leaf, w in before.items():
        np.testing.assert_allclose(
            found[leaf] - w, theirs[leaf] - w, rtol=1e-5, atol=1e-8, err_msg=leaf
        )


def functions():
    tree = ast.parse(inspect.getsource(field_recipes))
    return {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}


def test_every_line_has_a_case_and_is_one_expression_of_public_names():
    assert list(functions()) == list(CASES)
    for function in functions().values():
        docstring, line = function.body
        text = ast.get_docstring(function) or ""
        assert isinstance(line, ast.Return)
        assert isinstance(docstring, ast.Expr)
        for part in ("Source: https://", "Numbers:", "Not reproduced:", "Use: `"):
            assert part in text
        used = {n.id for n in ast.walk(line) if isinstance(n, ast.Name)}
        parameters = {a.arg for a in function.args.args}
        assert used <= parameters | {"om", "optax", "partial", "jax", "tree", "x"}


def test_the_page_shows_every_line_as_it_is():
    page = Path(__file__).parents[2] / ".docs" / "guides" / "field_recipes.rst"
    literals = re.findall(r"``([^`]+)``", page.read_text())
    shown = set()
    for text in literals:
        try:
            shown.add(ast.dump(ast.parse(" ".join(text.split()), mode="eval").body))
        except SyntaxError:
            continue
    for name, function in functions().items():
        line: Any = function.body[-1]
        assert ast.dump(line.value) in shown, name
