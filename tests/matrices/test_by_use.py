"""What each leaf of many models is, read from its use: right, or asked."""

import importlib

import pytest
from _uses.battery import CASES, judged, read_case

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


@pytest.mark.quick("nnx_lm", "linen_scan1", "mla", "eqx_nets", "scanned_llama_experts")
@pytest.mark.parametrize("name", CASES)
def test_every_leaf_is_right_or_asked(name):
    _, answers, verdicts = read_case(name)
    wrong, asked = judged(verdicts, answers)
    assert not wrong, "\n".join(wrong)
    assert asked == ASKED.get(name, {})
