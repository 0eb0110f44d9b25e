"""Haliax 1.4 (the name without marin): named sharding, `named_jit`, an Equinox file.

Haliax has no trainer and no checkpoints; its tutorial trains in a loop of one's own.
Haliax 1.3 cannot shard under the JAX that this library needs: its `shard` imports
`jax.experimental.maps`, which JAX 0.8 does not have.
"""

import pathlib

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import optax

import optax_matrix as om
from examples.frameworks import _trial

Vocab, Embed, Mlp, Heads, HeadDim, Layers, Batch, Pos = hax.make_axes(
    vocab=64, embed=64, mlp=128, heads=4, head_dim=16, layers=2, batch=8, position=16
)
KeyPos = Pos.alias("key_position")
PARAMETERS = {"embed": "data", "mlp": "model", "heads": "model"}
COMPUTE = {"batch": "data", "mlp": "model", "heads": "model"}

TABLE = {
    "embedding/weight/0": "other",
    "layers/stacked/q/weight/0": "1 -> 2, 3",
    "layers/stacked/k/weight/0": "1 -> 2, 3",
    "layers/stacked/v/weight/0": "1 -> 2, 3",
    "layers/stacked/o/weight/0": "2, 3 -> 1",
    "layers/stacked/up/weight/0": "1 -> 2",
    "layers/stacked/up/bias/0": "other",
    "layers/stacked/down/weight/0": "2 -> 1",
    "layers/stacked/norm/weight/0": "other",
    "layers/stacked/norm/bias/0": "other",
    "norm/weight/0": "other",
    "norm/bias/0": "other",
    "head/weight/0": "other",
}


class Block(eqx.Module):
    """Attention and a feed-forward layer behind one norm."""

    q: hax.nn.Linear
    k: hax.nn.Linear
    v: hax.nn.Linear
    o: hax.nn.Linear
    up: hax.nn.Linear
    down: hax.nn.Linear
    norm: hax.nn.LayerNorm

    @staticmethod
    def init(*, key):
        """Layers in both orders of axes."""
        keys = jax.random.split(key, 6)
        heads = (Heads, HeadDim)
        plain = {"use_bias": False, "out_first": False}
        back = {"use_bias": False, "out_first": True}
        return Block(
            *(hax.nn.Linear.init(Embed, heads, key=k, **plain) for k in keys[:3]),
            hax.nn.Linear.init(heads, Embed, key=keys[3], **back),
            hax.nn.Linear.init(Embed, Mlp, key=keys[4], out_first=False),
            hax.nn.Linear.init(Mlp, Embed, key=keys[5], **back),
            hax.nn.LayerNorm.init(Embed),
        )

    def __call__(self, x):
        """The residual stream after the block."""
        h = self.norm(x)
        k, v = (
            layer(h).rename({"position": "key_position"}) for layer in (self.k, self.v)
        )
        mask = hax.nn.attention.causal_mask(Pos, KeyPos)
        seen = hax.nn.attention.dot_product_attention(
            KeyPos, HeadDim, self.q(h), k, v, mask=mask
        )
        return x + self.o(seen) + self.down(hax.nn.gelu(self.up(h)))


class Model(eqx.Module):
    """A decoder of scanned blocks."""

    embedding: hax.nn.Embedding
    layers: hax.nn.Stacked
    norm: hax.nn.LayerNorm
    head: hax.nn.Linear

    @staticmethod
    def init(key):
        """The model of a key."""
        first, last, *rest = jax.random.split(key, 2 + Layers.size)
        return Model(
            hax.nn.Embedding.init(Vocab, Embed, key=first),
            hax.nn.Stacked.init(Layers, Block)(key=jnp.stack(rest)),
            hax.nn.LayerNorm.init(Embed),
            hax.nn.Linear.init(Embed, Vocab, key=last, use_bias=False, out_first=True),
        )

    def __call__(self, tokens):
        """Logits."""
        return self.head(self.norm(self.layers.fold(self.embedding(tokens))))


def _restored(path: pathlib.Path, like):
    """What a file has, each array where that of ``like`` is."""

    def load(f, x):
        held = eqx.default_deserialise_filter_spec(f, x)
        return jax.device_put(held, x.sharding) if isinstance(x, jax.Array) else held

    return eqx.tree_deserialise_leaves(path, like, filter_spec=load)


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """The loop of Haliax's tutorial, on a mesh of four by two."""
    rule = None

    def optimizer(params):
        nonlocal rule
        if method == "adamw":
            return optax.adamw(_trial.METHODS[method])
        rule = om.matrices.infer(params)
        return _trial.recipe(method, dimension_numbers=rule)

    def loss(model, tokens):
        with hax.axis_mapping(COMPUTE):
            logits = model(tokens["position", hax.ds(0, Pos.size)])
            labels = tokens["position", hax.ds(1, Pos.size)]
            each = hax.nn.cross_entropy_loss(
                logits, Vocab, hax.nn.one_hot(labels, Vocab), reduction=None
            )
            return hax.mean(each).scalar()

    mesh = jax.make_mesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    with hax.partitioning.set_mesh(mesh), hax.axis_mapping(PARAMETERS):
        model = hax.named_jit(Model.init)(jax.random.key(0))
        tx = optimizer(model)
        state = hax.named_jit(lambda model: tx.init(model))(model)

        @hax.named_jit
        def step(model, state, tokens):
            value, grads = eqx.filter_value_and_grad(loss)(model, tokens)
            updates, state = tx.update(grads, state, model)
            return value, eqx.apply_updates(model, updates), state

        count, losses = 0, []
        file = folder and folder / "model.eqx"
        if file and file.exists():
            count, model, state = _restored(file, (0, model, state))
        while count < steps:
            rows = _trial.tokens(count, Batch.size, Pos.size + 1, Vocab.size)
            tokens = hax.named(rows, (Batch, Pos.resize(Pos.size + 1)))
            value, model, state = step(model, state, tokens)
            losses.append(float(value))
            count += 1
        if file:
            file.parent.mkdir(exist_ok=True)
            eqx.tree_serialise_leaves(file, (count, model, state))
    return _trial.Run(losses, state, model, rule)


def used() -> _trial.Used:
    """The model by its call; on its own, the names of its axes."""
    model = Model.init(jax.random.key(0))
    tokens = hax.named(_trial.tokens(0, Batch.size, Pos.size, Vocab.size), (Batch, Pos))
    rule = om.matrices.by_use(model, tokens)
    return _trial.Used(rule, model, om.matrices.infer(model))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
