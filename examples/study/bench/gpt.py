"""GPT-2 as in nanoGPT: LayerNorm, learned positions, GELU, tied head, no biases.

Weights are named `embed/embedding`, `positions/embedding`,
`layers/<i>/attn/{qkv,o}/kernel`, `layers/<i>/mlp/{up,down}/kernel`,
`layers/<i>/{attn_norm,mlp_norm}/scale` and `norm/scale`; kernels are `(in, out)`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

import optax_matrix as om
from examples.pretrain.model import Linear, weight

SCALE = 0.02  # Of the initial weights.


@dataclasses.dataclass(frozen=True)
class Transformer:
    """Sizes of a stack of blocks.

    Attributes:
        embed: Width of the residual stream; the MLP is four times as wide.
        heads: Attention heads.
        layers: Number of blocks.
        is_causal: Whether a token attends to earlier ones only.
    """

    embed: int
    heads: int
    layers: int
    is_causal: bool = True

    def dimension_numbers(
        self, **others: om.matrices.MatrixDimensionNumbers
    ) -> om.matrices.PathRule:
        """Queries, keys and values are three matrices in one kernel."""
        fused = om.matrices.MatrixDimensionNumbers(output_sections=(self.embed,) * 3)
        return om.matrices.by_path(numbers={"qkv": fused, **others})


class LayerNorm(nnx.Module):
    """Normalization to mean zero and variance one, with a scale and no bias."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.scale = weight(rngs, (width,), ("embed",), None)

    def __call__(self, x):
        x = x - x.mean(-1, keepdims=True)
        variance = jnp.mean(x * x, -1, keepdims=True)
        return x * jax.lax.rsqrt(variance + 1e-5) * self.scale[...]


class Table(nnx.Module):
    """Vectors by number: of the tokens, or of the positions."""

    def __init__(self, rows: int, width: int, axis: str, rngs: nnx.Rngs):
        self.embedding = weight(rngs, (rows, width), (axis, "embed"), SCALE)

    def __call__(self):
        return self.embedding[...]


class Attention(nnx.Module):
    """Attention; one kernel makes queries, keys and values, in this order."""

    def __init__(self, sizes: Transformer, scale: float, rngs: nnx.Rngs):
        d, self.sizes = sizes.embed, sizes
        self.qkv = Linear((d, 3 * d), ("embed", "qkv"), SCALE, jnp.float32, rngs)
        self.o = Linear((d, d), ("heads", "embed"), scale, jnp.float32, rngs)

    def __call__(self, x):
        heads, causal = self.sizes.heads, self.sizes.is_causal
        parts = jnp.split(self.qkv(x), 3, axis=-1)
        q, k, v = (y.reshape(*y.shape[:-1], heads, -1) for y in parts)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        return self.o(y.reshape(x.shape))


class MLP(nnx.Module):
    """Two layers with GELU between them."""

    def __init__(self, width: int, scale: float, rngs: nnx.Rngs):
        wide = 4 * width
        self.up = Linear((width, wide), ("embed", "mlp"), SCALE, jnp.float32, rngs)
        self.down = Linear((wide, width), ("mlp", "embed"), scale, jnp.float32, rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x), approximate=False))


class Block(nnx.Module):
    """One layer: attention, then MLP; each adds to the residual stream."""

    def __init__(self, sizes: Transformer, rngs: nnx.Rngs):
        scale = SCALE / math.sqrt(2 * sizes.layers)
        self.attn_norm = LayerNorm(sizes.embed, rngs)
        self.attn = Attention(sizes, scale, rngs)
        self.mlp_norm = LayerNorm(sizes.embed, rngs)
        self.mlp = MLP(sizes.embed, scale, rngs)

    def __call__(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def blocks(sizes: Transformer, rngs: nnx.Rngs) -> nnx.List:
    return nnx.List([Block(sizes, rngs) for _ in range(sizes.layers)])


class GPT(nnx.Module):
    """Tokens `(batch, time)` to logits `(batch, time, vocab)`."""

    def __init__(self, sizes: Transformer, vocab: int, context: int, rngs: nnx.Rngs):
        self.embed = Table(vocab, sizes.embed, "vocab", rngs)
        self.positions = Table(context, sizes.embed, "position", rngs)
        self.layers = blocks(sizes, rngs)
        self.norm = LayerNorm(sizes.embed, rngs)

    def __call__(self, tokens):
        table = self.embed()
        x = table[tokens] + self.positions()[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ table.T
