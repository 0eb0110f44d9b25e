"""Trainable parameters of POET's LLaMA 60M to 1.3B, as integers, by the real split.

`examples.study.paper_tables` compares them with what the paper's Table 2 prints.
"""

import dataclasses
import functools

import jax
import pytest
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import SIZES, ModelConfig
from examples.pretrain.model import Llama

SHAPES = {  # Width, heads, layers; FFN of the rows AdamW and FS, FFN of the rows BS.
    "60m": (512, 8, 8, 1376, 1280),
    "130m": (768, 12, 12, 2048, 2048),
    "350m": (1024, 16, 24, 2736, 2816),
    "1.3b": (2048, 32, 24, 5464, 5376),
}
COUNTS = {
    ("block", 64): (2386944, 5515776, 14902272, 29223936),
    ("block", 128): (4811776, 11119104, 30041088, 58911744),
    ("block", 256): (9661440, 22325760, 60318720, 118287360),
    ("full", 1 / 8): (530352, 1776960, 6344184, 25385976),
    ("full", 1 / 4): (2131168, 7129728, 25435152, 101660664),
    ("full", 1 / 2): (8544192, 28562688, 101857440, 406876176),
}
ADAMW = (25296896, 84934656, 302383104, 1208352768)


@functools.cache
def _abstract(size, mlp):
    width, heads, layers, *_ = SHAPES[size]
    config = ModelConfig(
        embed=width, mlp=mlp, heads=heads, kv_heads=heads, layers=layers
    )
    model = nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
    return nnx.state(model, nnx.Param)


def _size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.mark.broad
@pytest.mark.parametrize("row", COUNTS, ids=lambda row: f"{row[0]}-{row[1]:g}")
def test_rotations_are_table_two(row):
    variant, block = row
    poet = om.reparameterize(variant=variant, block=block)
    for i, (size, (*_, mlp_full, mlp_block)) in enumerate(SHAPES.items()):
        params = _abstract(size, mlp_block if variant == "block" else mlp_full)
        _, trainable = jax.eval_shape(poet.split, params)
        count = _size(trainable.rotations)
        assert count == COUNTS[row][i]
        # Embedding, head and norms train as they are, and are not counted.
        vocab, (width, _, layers, *_) = 32000, SHAPES[size]
        assert _size(trainable.others) == 2 * vocab * width + (2 * layers + 1) * width


def test_adamw_trains_all_of_them():
    for size, want in zip(SHAPES, ADAMW, strict=True):
        params = _abstract(size, SHAPES[size][3])
        layout = om.stacks.make_layout(params)
        assert sum(g.count * g.rows * g.cols for g in layout.groups.values()) == want


def test_the_sizes_are_those_of_the_examples_where_the_tables_agree():
    for size in ("60m", "130m", "350m"):
        width, heads, layers, mlp, _ = SHAPES[size]
        config = dataclasses.asdict(SIZES[size])
        got = tuple(config[k] for k in ("embed", "heads", "layers", "mlp"))
        assert got == (width, heads, layers, mlp)
