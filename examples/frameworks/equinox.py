"""Equinox: the whole model as parameters, `eqx.filter_shard`, its own leaf files.

The optimizer's line is `om.muoneq(1e-2,
dimension_numbers=equinox_rule.rule("^head/"))`: Equinox's weights are `(out, in)`.
"""

import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.frameworks import _trial
from optax_matrix.adapters import equinox_rule

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 64, 32, 2, 8, 16
RULE = equinox_rule.rule("^head/")

LAYER = {
    "attention/key_proj/weight": "1 -> 0",
    "attention/output_proj/weight": "1 -> 0",
    "attention/query_proj/weight": "1 -> 0",
    "attention/value_proj/weight": "1 -> 0",
    "down/bias": "other",
    "down/weight": "1 -> 0",
    "norm/bias": "other",
    "norm/weight": "other",
    "up/bias": "other",
    "up/weight": "1 -> 0",
}
TABLE = {
    "embed/weight": "other",
    "head/weight": "other",
    "norm/bias": "other",
    "norm/weight": "other",
    **{f"layers/{i}/{k}": v for i in range(LAYERS) for k, v in LAYER.items()},
}


class Layer(eqx.Module):
    """Attention and two linear layers behind one norm."""

    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        """Weights."""
        keys = jax.random.split(key, 3)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(4, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=keys[1])
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, x):
        """The layer's output for one sequence."""
        y = jax.vmap(self.norm)(x)
        y = y + self.attention(y, y, y, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(y)))


class Model(eqx.Module):
    """A decoder."""

    embed: eqx.nn.Embedding
    layers: list[Layer]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        """Embedding, layers, norm and head."""
        keys = jax.random.split(key, LAYERS + 2)
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.layers = [Layer(k) for k in keys[2:]]
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, use_bias=False, key=keys[1])

    def __call__(self, tokens):
        """Logits of one sequence."""
        x = jax.vmap(self.embed)(tokens)
        for layer in self.layers:
            x = layer(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def _loss(model, tokens):
    logits = jax.vmap(model)(tokens[:, :-1])
    each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return each.mean()


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """Equinox's sharded loop: arrays are cut along the first axis that divides."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    batches = NamedSharding(mesh, P("fsdp"))
    tx = _optimizer(method)

    def cut(x):
        axes = (i for i, size in enumerate(x.shape) if x.ndim > 1 and size % 8 == 0)
        first = next(axes, None)
        spec = P() if first is None else P(*[None] * first, "fsdp")
        return NamedSharding(mesh, spec)

    def place(tree):
        arrays, rest = eqx.partition(tree, eqx.is_array)
        arrays = eqx.filter_shard(arrays, jax.tree.map(cut, arrays))
        return eqx.combine(arrays, rest)

    @eqx.filter_jit(donate="all")
    def step(model, state, tokens):
        value, grads = eqx.filter_value_and_grad(_loss)(model, tokens)
        updates, state = tx.update(grads, state, model)
        model = eqx.apply_updates(model, updates)
        return place(model), place(state), value

    model = place(Model(jax.random.key(0)))
    state = place(tx.init(eqx.filter(model, eqx.is_inexact_array)))
    start, saved = 0, folder and folder.with_suffix(".eqx")
    if saved and saved.exists():
        start, model, state = eqx.tree_deserialise_leaves(saved, (0, model, state))
        model, state = place(model), place(state)
    losses = []
    for number in range(start, steps):
        tokens = _trial.tokens(number, BATCH, LENGTH + 1, VOCABULARY)
        model, state, value = step(model, state, jax.device_put(tokens, batches))
        losses.append(float(value))
    if saved and not saved.exists():
        eqx.tree_serialise_leaves(saved, (steps, model, state))
    params = eqx.filter(model, eqx.is_inexact_array)
    return _trial.Run(losses, state, params, RULE)


def _optimizer(method):
    if method == "adamw":
        return optax.adamw(_trial.METHODS[method])
    return _trial.recipe(method, dimension_numbers=RULE)


def used() -> _trial.Used:
    """The model by its loss."""
    model = Model(jax.random.key(0))
    tokens = _trial.tokens(0, BATCH, LENGTH + 1, VOCABULARY)
    rule = om.matrices.by_use(_loss, model, tokens)
    return _trial.Used(rule, eqx.filter(model, eqx.is_inexact_array), RULE)


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
