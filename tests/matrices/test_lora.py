"""LoRA factors of NNX and of other libraries: what the default rule says of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import optax_matrix as om


def reasons(params, rule=None):
    rows = om.describe(params, rule, matrix="muon", other="adamw").rows
    return {row.leaf: (row.optimizer, row.why.split(";")[0]) for row in rows}


A, B = ("muon", "a LoRA factor (in, rank)"), ("muon", "a LoRA factor (rank, out)")


@pytest.mark.broad
def test_nnx_and_the_choice_of_b_alone():
    model = nnx.LoRALinear(6, 8, lora_rank=2, rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.LoRAParam)
    assert reasons(params) == {"lora/lora_a": A, "lora/lora_b": B}
    rule = om.matrices.by_path(exclude="lora_a")
    out = ("adamw", "excluded by 'lora_a'")
    assert reasons(params, rule) == {"lora/lora_a": out, "lora/lora_b": B}
    tx = om.muon(0.1, dimension_numbers=rule, other=optax.set_to_zero())
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    assert not updates["lora"]["lora_a"][...].any()
    assert updates["lora"]["lora_b"][...].any()


@pytest.mark.parametrize(
    ("path", "shape", "expected"),
    [
        ("layers/0/attn/q_proj/w_lora_a", (6, 2), A),
        ("layers/0/attn/q_proj/w_lora_b", (2, 8), B),
        ("base/q_proj/lora_A/kernel", (6, 2), A),
        ("scanned_layers/up/kernel_lora_b", (3, 2, 8), B),
        ("lora_b", (1, 16), ("adamw", "a side of length one")),
        ("flora_bed/kernel", (4, 6), ("muon", "kernel (in, out)")),
    ],
)
def test_names(path, shape, expected):
    assert reasons({path: np.ones(shape, np.float32)}) == {path: expected}
