"""LLaMA in Flax NNX: RMSNorm, RoPE, SwiGLU, grouped-query attention, untied head.

Weights are float32 and named `embed/embedding`, `layers/<i>/attn/{q,k,v,o}/kernel`,
`layers/<i>/mlp/{gate,up,down}/kernel`, `layers/<i>/{attn_norm,mlp_norm}/scale`,
`norm/scale` and `lm_head/kernel`; kernels are `(in, out)`. Scanned layers have no
`<i>`: each weight holds all layers on a leading axis. The `out_sharding` of a weight
names its axes; the names are metadata only and need no mesh.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import ModelConfig


def weight(rngs: nnx.Rngs, shape, axes, scale):
    """A float32 weight drawn from a normal; `scale=None` gives ones."""
    if scale is None:
        value = jnp.ones(shape, jnp.float32)
    else:
        value = scale * jax.random.normal(rngs.params(), shape, jnp.float32)
    return nnx.Param(value, out_sharding=axes, eager_sharding=False)


class Linear(nnx.Module):
    """`x @ kernel` in the compute dtype."""

    def __init__(self, shape, axes, scale, dtype, rngs):
        self.dtype = dtype
        self.kernel = weight(rngs, shape, axes, scale)

    def __call__(self, x):
        # One flat batch of tokens: without it, XLA's CPU backend is a third slower.
        tokens = x.astype(self.dtype).reshape(-1, x.shape[-1])
        y = tokens @ self.kernel[...].astype(self.dtype)
        return y.reshape(*x.shape[:-1], -1)


class Embed(nnx.Module):
    """Embedding: looks up rows of a table."""

    def __init__(self, config: ModelConfig, rngs):
        self.dtype, self.one_hot = config.dtype, config.one_hot
        shape, axes = (config.vocab, config.embed), ("vocab", "embed")
        self.embedding = weight(rngs, shape, axes, config.init_scale)

    def __call__(self, tokens):
        table = self.embedding[...].astype(self.dtype)
        if self.one_hot:
            return jax.nn.one_hot(tokens, len(table), dtype=self.dtype) @ table
        return table[tokens]


class RMSNorm(nnx.Module):
    """Root mean square normalization, computed in float32."""

    def __init__(self, config: ModelConfig, rngs):
        self.eps = config.norm_eps
        self.scale = weight(rngs, (config.embed,), ("embed",), None)

    def __call__(self, x):
        y = x.astype(jnp.float32)
        y *= jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.eps)
        return (y * self.scale[...]).astype(x.dtype)


def rotate_by_position(x, base, offset=0):
    """Rotary position embedding of `(batch, time, heads, head_dim)`.

    Component `i` of the first half and component `i` of the second half span a plane.
    Position `t` rotates it by the angle `t * base**(-2 i / head_dim)`.
    """
    half = x.shape[-1] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    position = offset + jnp.arange(x.shape[1], dtype=jnp.float32)
    angle = (position[:, None] * frequency)[:, None, :]
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Attention(nnx.Module):
    """Causal attention in which several query heads share a key and value head."""

    def __init__(self, config: ModelConfig, rngs):
        c, d, width = config, config.embed, config.head_dim
        self.head_dim, self.rope_base = width, c.rope_base
        self.implementation = c.attention

        def reader(heads, name):
            shape, axes = (d, heads * width), ("embed", name)
            return Linear(shape, axes, c.init_scale, c.dtype, rngs)

        self.q = reader(c.heads, "heads")
        self.k = reader(c.kv_heads, "kv_heads")
        self.v = reader(c.kv_heads, "kv_heads")
        shape, axes = (c.heads * width, d), ("heads", "embed")
        self.o = Linear(shape, axes, _residual_scale(c), c.dtype, rngs)

    def __call__(self, x):
        split = lambda y: y.reshape(*y.shape[:-1], -1, self.head_dim)
        q = rotate_by_position(split(self.q(x)), self.rope_base)
        k = rotate_by_position(split(self.k(x)), self.rope_base)
        how = {"is_causal": True, "implementation": self.implementation}
        y = jax.nn.dot_product_attention(q, k, split(self.v(x)), **how)
        return self.o(y.reshape(*y.shape[:-2], -1))


class MLP(nnx.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig, rngs):
        c = config
        read = ((c.embed, c.mlp), ("embed", "mlp"), c.init_scale, c.dtype)
        write = ((c.mlp, c.embed), ("mlp", "embed"), _residual_scale(c), c.dtype)
        self.gate = Linear(*read, rngs)
        self.up = Linear(*read, rngs)
        self.down = Linear(*write, rngs)

    def __call__(self, x):
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def _residual_scale(config: ModelConfig) -> float:
    depth = 2 * config.layers if config.scaled_residual else 1
    return config.init_scale / math.sqrt(depth)


class Block(nnx.Module):
    """One layer: attention, then MLP; each adds to the residual stream."""

    def __init__(self, config: ModelConfig, rngs):
        self.attn_norm = RMSNorm(config, rngs)
        self.attn = Attention(config, rngs)
        self.mlp_norm = RMSNorm(config, rngs)
        self.mlp = MLP(config, rngs)

    def __call__(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def _stacked(config: ModelConfig, keys):
    """All blocks as one module whose weights have the layers on their leading axis."""

    @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
    def build(key):
        return Block(config, nnx.Rngs(params=key))

    return build(keys)


class Llama(nnx.Module):
    """Tokens `(batch, time)` to float32 logits `(batch, time, vocab)`.

    The same seed gives the same weights whether the layers are scanned or not.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embed = Embed(config, rngs)
        keys = jax.random.split(rngs.params(), config.layers)
        if config.scan:
            self.layers = _stacked(config, keys)
        else:
            blocks = [Block(config, nnx.Rngs(params=key)) for key in keys]
            self.layers = nnx.List(blocks)
        self.norm = RMSNorm(config, rngs)
        shape, axes = (config.embed, config.vocab), ("embed", "vocab")
        self.lm_head = Linear(shape, axes, config.init_scale, config.dtype, rngs)

    def __call__(self, tokens):
        x = self.norm(self._run_layers(self.embed(tokens)))
        return self.lm_head(x).astype(jnp.float32)

    def _run_layers(self, x):
        scan = self.config.scan
        layers = [self.layers] if scan else list(self.layers)
        graph = nnx.graphdef(layers[0])
        states = [nnx.state(layer) for layer in layers]

        def apply(x, state):
            return nnx.merge(graph, state)(x), None

        if self.config.remat:
            apply = jax.checkpoint(apply)
        if scan:
            return jax.lax.scan(apply, x, states[0])[0]
        # Tied, so that no layer's activations wait for the optimizer.
        for state in states:
            x, _ = apply(*om.sharding.tie(x, state))
        return x
