"""Six small models, written as a user of Flax NNX would write them."""

import jax
import jax.numpy as jnp
from flax import nnx


class CharGRU(nnx.Module):
    """Tokens `(batch, time)` to logits of the next ones; gates are fused."""

    def __init__(self, vocab: int, width: int, hidden: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(vocab, width, rngs=rngs)
        self.inputs = nnx.Linear(width, 3 * hidden, rngs=rngs)
        self.hidden = nnx.Linear(hidden, 3 * hidden, rngs=rngs)
        self.head = nnx.Linear(hidden, vocab, rngs=rngs)

    def __call__(self, tokens):
        inputs = self.inputs(self.embed(tokens)).swapaxes(0, 1)

        def step(h, x):
            a, b = jnp.split(x, 3, -1), jnp.split(self.hidden(h), 3, -1)
            reset, update = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
            new = jnp.tanh(a[2] + reset * b[2])
            h = update * h + (1 - update) * new
            return h, h

        first = jnp.zeros((tokens.shape[0], inputs.shape[-1] // 3))
        return self.head(jax.lax.scan(step, first, inputs)[1].swapaxes(0, 1))


class MLP(nnx.Module):
    """Two layers with GELU between them."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs):
        self.up = nnx.Linear(width, hidden, rngs=rngs)
        self.down = nnx.Linear(hidden, width, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


class MixerBlock(nnx.Module):
    """An MLP over places, then one over channels."""

    def __init__(self, places: int, width: int, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.places = MLP(places, 2 * places, rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.channels = MLP(width, 4 * width, rngs)

    def __call__(self, x):
        x = x + self.places(self.norm1(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nnx.Module):
    """Images `(batch, 8, 8)` to logits: patches of 2 x 2, three blocks of a mixer."""

    def __init__(self, rngs: nnx.Rngs, width: int = 64):
        self.patches = nnx.Linear(4, width, rngs=rngs)
        self.blocks = nnx.List([MixerBlock(16, width, rngs) for _ in range(3)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, images):
        x = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
        x = self.patches(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class ConvNet(nnx.Module):
    """Images `(batch, 28, 28)` to logits: three convolutions of stride 2."""

    def __init__(self, rngs: nnx.Rngs):
        sizes = (1, 16, 32, 64)
        conv = lambda a, b: nnx.Conv(a, b, (3, 3), strides=2, rngs=rngs)
        self.convs = nnx.List(map(conv, sizes[:-1], sizes[1:]))
        self.norms = nnx.List([nnx.GroupNorm(n, 8, rngs=rngs) for n in sizes[1:]])
        self.hidden = nnx.Linear(sizes[-1], 64, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        x = images[..., None]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.relu(norm(conv(x)))
        return self.head(jax.nn.relu(self.hidden(x.mean((1, 2)))))


class UNet(nnx.Module):
    """Noisy images `(batch, 28, 28)` to clean ones: two levels down, two up."""

    def __init__(self, rngs: nnx.Rngs):
        conv = lambda a, b, stride=1: nnx.Conv(a, b, (3, 3), strides=stride, rngs=rngs)
        self.first, self.last = conv(1, 8), conv(8, 1)
        self.down1, self.down2 = conv(8, 16, 2), conv(16, 32, 2)
        self.middle = conv(32, 32)
        self.up2, self.up1 = conv(32 + 16, 16), conv(16 + 8, 8)

    def __call__(self, images):
        a = jax.nn.gelu(self.first(images[..., None]))
        b = jax.nn.gelu(self.down1(a))
        c = jax.nn.gelu(self.down2(b))
        c = c + jax.nn.gelu(self.middle(c))
        b = jax.nn.gelu(self.up2(jnp.concatenate([_doubled(c), b], -1)))
        a = jax.nn.gelu(self.up1(jnp.concatenate([_doubled(b), a], -1)))
        return self.last(a)[..., 0]


def _doubled(x):
    """Each pixel as four."""
    return x.repeat(2, 1).repeat(2, 2)


class GraphNet(nnx.Module):
    """Features of nodes `(nodes, features)` to logits: three rounds of messages."""

    def __init__(self, features: int, width: int, classes: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(features, width, rngs=rngs)
        linears = lambda: nnx.List(
            [nnx.Linear(width, width, rngs=rngs) for _ in range(3)]
        )
        self.own, self.messages = linears(), linears()
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, nodes, neighbours):
        """`neighbours` is `(nodes, k)`, the places of each node's neighbours."""
        x = jax.nn.relu(self.first(nodes))
        for own, message in zip(self.own, self.messages, strict=True):
            x = x + jax.nn.relu(own(x) + message(x[neighbours].mean(1)))
        return self.head(x)


class Tabular(nnx.Module):
    """Rows `(batch, columns)` to one number each: an MLP with residual blocks."""

    def __init__(self, columns: int, width: int, rngs: nnx.Rngs):
        self.first = nnx.Linear(columns, width, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(3)])
        self.blocks = nnx.List([MLP(width, 2 * width, rngs) for _ in range(3)])
        self.head = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, rows):
        x = self.first(rows)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(x)[..., 0]
