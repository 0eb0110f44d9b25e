"""Flax NNX: `nnx.Optimizer`, sharding by the metadata of `nnx.Param`, Orbax.

The optimizer's line is `om.muoneq(1e-2, placement=om.owners.from_params(params,
("fsdp", "tp")))`, where ``params = nnx.state(model, nnx.Param)``.
"""

import pathlib

import jax
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.frameworks import _trial

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 64, 32, 4, 8, 16

LAYER = {
    "attention/key/kernel": "0 -> 1, 2",
    "attention/out/kernel": "0, 1 -> 2",
    "attention/query/kernel": "0 -> 1, 2",
    "attention/value/kernel": "0 -> 1, 2",
    "down/bias": "other",
    "down/kernel": "0 -> 1",
    "norm/scale": "other",
    "up/bias": "other",
    "up/kernel": "0 -> 1",
}
TABLE = {
    "embed/embedding": "other",
    "head/kernel": "other",
    "norm/scale": "other",
    **{f"layers/{i}/{k}": v for i in range(LAYERS) for k, v in LAYER.items()},
}


def _on(*axes):
    return {"out_sharding": axes}


class Layer(nnx.Module):
    """Attention and two dense layers behind one norm."""

    def __init__(self, rngs):
        """Weights, each with the mesh axes of its axes."""
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            4,
            WIDTH,
            use_bias=False,
            decode=False,
            kernel_metadata=_on("fsdp", "tp", None),
            out_kernel_metadata=_on("tp", None, "fsdp"),
            rngs=rngs,
        )
        up, down = _on("fsdp", "tp"), _on("tp", "fsdp")
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, kernel_metadata=up, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, kernel_metadata=down, rngs=rngs)

    def __call__(self, x):
        """The layer's output."""
        y = self.norm(x)
        y = y + self.attention(y, mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(y)))


class Model(nnx.Module):
    """A decoder."""

    def __init__(self, rngs):
        """Embedding, layers, norm and head."""
        table, head = _on("tp", "fsdp"), _on("fsdp", "tp")
        self.embed = nnx.Embed(VOCABULARY, WIDTH, embedding_metadata=table, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(
            WIDTH, VOCABULARY, use_bias=False, kernel_metadata=head, rngs=rngs
        )

    def __call__(self, tokens):
        """Logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@nnx.jit
def _step(model, optimizer, tokens):
    def loss(model):
        logits = model(tokens[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return each.mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """NNX's own loop; parameters are born sharded, `nnx.split` gives what is saved."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model = Model(nnx.Rngs(0))
        params = nnx.state(model, nnx.Param)
        optimizer = nnx.Optimizer(model, _optimizer(method, params), wrt=nnx.Param)
        if folder and folder.exists():
            graph, state = nnx.split((model, optimizer))
            with ocp.StandardCheckpointer() as saved:
                state = saved.restore(folder, state)
            model, optimizer = nnx.merge(graph, state)
        batches = NamedSharding(mesh, P("fsdp"))
        losses = []
        while (step := int(optimizer.step[...])) < steps:
            tokens = _trial.tokens(step, BATCH, LENGTH + 1, VOCABULARY)
            value = _step(model, optimizer, jax.device_put(tokens, batches))
            losses.append(float(value))
        if folder and not folder.exists():
            with ocp.StandardCheckpointer() as saved:
                saved.save(folder, nnx.split((model, optimizer))[1])
    params = nnx.state(model, nnx.Param)
    return _trial.Run(losses, nnx.state(optimizer), params)


def _optimizer(method, params):
    if method == "adamw":
        return optax.adamw(_trial.METHODS[method])
    placement = om.owners.from_params(params, ("fsdp", "tp"))
    return _trial.recipe(method, placement=placement)


def used() -> _trial.Used:
    """The model by its own call."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model = Model(nnx.Rngs(0))
        rule = om.matrices.by_use(model, _trial.tokens(0, BATCH, LENGTH, VOCABULARY))
    return _trial.Used(rule, nnx.state(model, nnx.Param))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
