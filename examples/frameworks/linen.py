"""Flax Linen: `TrainState`, logical axes of `nn.with_partitioning`, Orbax."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState

from examples.frameworks import _trial

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 64, 32, 2, 8, 16

TABLE = {
    "embed/embedding": "other",
    "layers/attention/out/kernel": "1, 2 -> 3",
    "layers/attention/query/kernel": "1 -> 2, 3",
    "layers/attention/key/kernel": "1 -> 2, 3",
    "layers/attention/value/kernel": "1 -> 2, 3",
    "layers/down/bias": "other",
    "layers/down/kernel": "1 -> 2",
    "layers/norm/scale": "other",
    "layers/up/bias": "other",
    "layers/up/kernel": "1 -> 2",
    "norm/scale": "other",
    "head/kernel": "other",
}


def _split(*axes):
    return nn.with_partitioning(nn.initializers.lecun_normal(), axes)


class Layer(nn.Module):
    """Attention and two dense layers behind one norm."""

    @nn.compact
    def __call__(self, x, _):
        """The layer's output, as `nn.scan` wants it."""
        y = nn.RMSNorm(name="norm")(x)
        attention = nn.MultiHeadDotProductAttention(
            4,
            use_bias=False,
            kernel_init=_split("fsdp", None, None),
            out_kernel_init=_split(None, None, "fsdp"),
            name="attention",
        )
        y = y + attention(y)
        h = nn.Dense(4 * WIDTH, kernel_init=_split("fsdp", "tp"), name="up")(y)
        h = nn.Dense(WIDTH, kernel_init=_split("tp", "fsdp"), name="down")(nn.gelu(h))
        return x + h, None


class Model(nn.Module):
    """A decoder of scanned layers."""

    @nn.compact
    def __call__(self, tokens):
        """Logits."""
        x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens)
        scanned = nn.scan(
            Layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: None},
        )
        x, _ = scanned(name="layers")(x, None)
        x = nn.RMSNorm(name="norm")(x)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(x)


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """Flax's own loop: boxed parameters, sharding from their metadata, Orbax."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"))
    rate = _trial.METHODS[method]
    tx = optax.adamw(rate) if method == "adamw" else _trial.recipe(method)
    model = Model()

    def init(key):
        params = model.init(key, jnp.zeros((1, LENGTH), int))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=tx)

    def loss(params, tokens):
        logits = model.apply({"params": params}, tokens[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return each.mean()

    @jax.jit
    def step(state, tokens):
        value, grads = jax.value_and_grad(loss)(state.params, tokens)
        return state.apply_gradients(grads=grads), value

    with jax.set_mesh(mesh):
        key = jax.random.key(0)
        shapes = jax.eval_shape(init, key)
        shardings = nn.get_sharding(shapes, mesh)
        state = jax.jit(init, out_shardings=shardings)(key)
        if folder and folder.exists():
            with ocp.StandardCheckpointer() as saved:
                state = saved.restore(folder, state)
        losses = []
        while int(state.step) < steps:
            tokens = _trial.tokens(int(state.step), BATCH, LENGTH + 1, VOCABULARY)
            state, value = step(state, tokens)
            losses.append(float(value))
        if folder and steps == _trial.STOP:
            with ocp.StandardCheckpointer() as saved:
                saved.save(folder, state)
    return _trial.Run(losses, state.opt_state, state.params)


if __name__ == "__main__":
    _trial.main(train, TABLE)
