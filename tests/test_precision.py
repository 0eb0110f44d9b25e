"""The precision of every product of every recipe, as each platform would compile it."""

import re

import jax
import jax.numpy as jnp
import pytest
from _registry import BLOCKS, RECIPES

_CORE = {"soap", "alice", "muon"}
names = [
    name if name in _CORE else pytest.param(name, marks=pytest.mark.slow)
    for name in RECIPES
]
PARAMS = {
    name: {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32)}
    for name, shape in {"wide": (8, 12), "tall": (12, 8), "square": (8, 8)}.items()
}


def lowered(tx, params, platform):
    state = jax.eval_shape(tx.init, params)
    traced = jax.jit(tx.update).trace(params, state, params)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def products(text):
    """Lines of the products of matrices in a lowered program."""
    lines = [x for x in text.splitlines() if "dot_general" in x]
    return [x for x in lines if not _is_with_vector(x)]


def _is_with_vector(line):
    """Whether one of the factors has fewer axes than a matrix in each batch."""
    types = re.findall(r"tensor<([^>]*)>", line)[-3:]
    batch = re.search(r"batching_dims = \[([\d, ]*)\]", line)
    axes = len(batch.group(1).split(",")) if batch and batch.group(1) else 0
    return any(len(x.split("x")) - 1 - axes < 2 for x in types[:2])


@pytest.mark.quick("muon")
@pytest.mark.parametrize("name", names)
def test_exact_recipes_lower_no_product(name):
    for platform in ("cuda", "tpu"):
        tx = RECIPES[name](1e-3, precision="exact")
        text = lowered(tx, PARAMS, platform)
        assert not any("algorithm" in x for x in products(text))
        assert "precision = [HIGH," not in text
        assert "bf16" not in text


@pytest.mark.quick("muon")
@pytest.mark.parametrize("name", names)
def test_by_default_no_product_on_cuda_is_left_in_full_float32(name):
    text = lowered(RECIPES[name](1e-3), PARAMS, "cuda")
    for line in products(text):
        assert "HIGHEST" not in line
        assert "num_primitive_operations = 3" in line or "bf16" in line, line


@pytest.mark.quick("muon")
@pytest.mark.parametrize("name", names)
def test_policies_share_the_program_of_a_cpu(name):
    programs = {
        policy: products(lowered(RECIPES[name](1e-3, precision=policy), PARAMS, "cpu"))
        for policy in ("default", "fast", "exact")
    }
    count = {policy: len(lines) for policy, lines in programs.items()}
    assert len(set(count.values())) == 1
    for lines in programs.values():
        assert not any("algorithm" in x or "bf16" in x for x in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_lowered_too(name):
    text = lowered(BLOCKS[name](), {n: x["kernel"] for n, x in PARAMS.items()}, "cuda")
    assert not [x for x in products(text) if "HIGHEST" in x]
