"""Sizes of the model."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A LLaMA: widths, depth, and how it is computed.

    Attributes:
        embed: Width of the residual stream.
        mlp: Width of the SwiGLU.
        heads: Query heads.
        kv_heads: Key and value heads; each serves `heads / kv_heads` query heads.
        layers: Number of blocks.
        vocab: Number of tokens.
        context: Tokens that one training window predicts.
        scan: Stack the layers on a leading axis and scan over them.
        remat: Recompute a block's activations in the backward pass.
        dtype: Dtype of the matrix products; the weights are float32.
        scaled_residual: Divide the initial `o` and `down` by `sqrt(2 layers)`.
        attention: Implementation of `jax.nn.dot_product_attention`; "cudnn" is fast on
            GPUs that have it, in 16 bits.
        one_hot: Look tokens up by a product, for a small vocabulary: its gradient is a
            product, too, and no sum of rows at random places.
    """

    embed: int
    mlp: int
    heads: int
    kv_heads: int
    layers: int
    vocab: int = 32000
    context: int = 256
    scan: bool = True
    remat: bool = False
    dtype: str = "bfloat16"
    scaled_residual: bool = False
    attention: Literal["xla", "cudnn"] = "xla"
    one_hot: bool = False
    init_scale: float = 0.02
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6

    def __post_init__(self):
        if self.embed % self.heads or (self.embed // self.heads) % 2:
            raise ValueError(
                f"`heads` must divide `embed` into an even head width, got "
                f"{self.heads!r} heads for a width of {self.embed!r}."
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"`kv_heads` must divide `heads`, got {self.kv_heads!r} for "
                f"{self.heads!r} heads."
            )

    @property
    def head_dim(self) -> int:
        return self.embed // self.heads


# The sizes of the pre-training tables of the GaLore and RACS papers (untied head,
# context 256). `tiny` is for bytes as tokens and small enough for two CPU cores.
SIZES = {
    "tiny": ModelConfig(
        embed=96,
        mlp=256,
        heads=4,
        kv_heads=2,
        layers=2,
        vocab=256,
        context=64,
        scan=False,
        dtype="float32",
    ),
    "60m": ModelConfig(embed=512, mlp=1376, heads=8, kv_heads=8, layers=8),
    "130m": ModelConfig(embed=768, mlp=2048, heads=12, kv_heads=12, layers=12),
    "350m": ModelConfig(
        embed=1024, mlp=2736, heads=16, kv_heads=16, layers=24, remat=True
    ),
    "1.3b": ModelConfig(
        embed=2048, mlp=5461, heads=32, kv_heads=32, layers=24, remat=True
    ),
}
