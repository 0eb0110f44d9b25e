"""A small vision transformer with a convolution in front of its patches.

Weights are named `stem/kernel` (3, 3, 1, channels), `patches/kernel` (2, 2, channels,
width), `positions/embedding`, `layers/...` as in `gpt`, `norm/scale` and `lm_head`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from examples.pretrain.model import Linear, weight
from examples.study.bench.gpt import SCALE, LayerNorm, Table, Transformer, blocks

CHANNELS, SIDE = 16, 28


class Convolution(nnx.Module):
    """A convolution without bias, with stride 2."""

    def __init__(self, shape: tuple[int, int, int, int], rngs: nnx.Rngs):
        *reduced, _ = shape
        size = reduced[0] * reduced[1] * reduced[2]
        axes = ("height", "width", "conv_in", "conv_out")
        self.kernel = weight(rngs, shape, axes, size**-0.5)

    def __call__(self, x):
        layout = ("NHWC", "HWIO", "NHWC")
        kernel = self.kernel[...]
        return jax.lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=layout
        )


class ViT(nnx.Module):
    """Images `(batch, 28, 28)` of numbers from 0 to 1 to logits `(batch, 10)`."""

    def __init__(self, sizes: Transformer, rngs: nnx.Rngs):
        self.stem = Convolution((3, 3, 1, CHANNELS), rngs)
        self.patches = Convolution((2, 2, CHANNELS, sizes.embed), rngs)
        self.positions = Table((SIDE // 4) ** 2, sizes.embed, "position", rngs)
        self.layers = blocks(sizes, rngs)
        self.norm = LayerNorm(sizes.embed, rngs)
        shape, axes = (sizes.embed, 10), ("embed", "vocab")
        self.lm_head = Linear(shape, axes, SCALE, jnp.float32, rngs)

    def __call__(self, images):
        x = jax.nn.gelu(self.stem(images[..., None]))
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.positions()
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x.mean(1)))
