"""What each leaf of many models is, read from its use: right, or asked."""

import importlib
import warnings

import pytest
from _uses.battery import CASES, answer_of, is_right, letters

from optax_matrix.matrices.use.rule import by_use

for name in (
    "flax_models",
    "other_models",
    "keras_models",
    "plain_models",
    "chosen_models",
):
    importlib.import_module(f"_uses.{name}")

# Leaves whose use does not tell, and why; each of these asks.
ASKED = {
    "eqx_transformer": {
        "latents": "a product of two parameters",
        "x/query_proj/weight": "a product of two parameters",
    },
    "gnn_gat": {
        "bases": "a product of two parameters",
        "coef": "a product of two parameters",
    },
    "hypernet": {"gen_w": "bilinear in two inputs"},
    "relative_positions": {
        "skew": "softmax or maximum over all outputs, a router?",
        "wr": "a product with a constant, then with data",
    },
    "soft_moe_swin": {
        "dense": "bilinear in two inputs",
        "gate": "softmax or maximum over all outputs, a router?",
        "phi": "softmax or maximum over all outputs, a router?",
    },
}


def read(fn, params, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return by_use(fn, params, *inputs)


@pytest.mark.quick("nnx_lm", "linen_scan1", "mla", "eqx_nets", "scanned_llama_experts")
@pytest.mark.parametrize("name", CASES)
def test_every_leaf_is_right_or_asked(name):
    if name.startswith("keras"):
        importlib.import_module("keras").utils.clear_session()  # It counts layers.
    fn, params, inputs, answers = CASES[name]()
    wrong, asked = [], {}
    for verdict in read(fn, params, inputs).verdicts:
        if sum(n > 1 for n in verdict.shape) < 2:
            continue
        want = answer_of(verdict.path, answers)
        assert want is not None, verdict.path
        if verdict.kind in ("unclear", "not used"):
            asked[verdict.path] = verdict.reason
            continue
        got = letters(
            verdict.numbers if verdict.kind == "matrix" else None, verdict.shape
        )
        if not is_right(got, want, verdict.shape):
            wrong.append(f"{verdict.path} {verdict.shape}: {got}, not {want}")
    assert not wrong, "\n".join(wrong)
    assert asked == ASKED.get(name, {})
