"""Haiku: `hk.transform`, shardings of its dictionaries, pickled NumPy arrays.

Haiku has no checkpoints of its own; its examples pickle the trees, and so does this.
The optimizer's line is `om.muoneq(1e-2, dimension_numbers=RULE,
placement=om.owners("fsdp", param_specs=specs))`, where `RULE` names the head.
"""

import pathlib
import pickle

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from examples.frameworks import _trial
from optax_matrix.adapters import haiku_rule

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 64, 32, 4, 8, 16
RULE = haiku_rule.rule("decoder/linear")  # The head has no name of its own.

TABLE = {
    "decoder/embed/embeddings": "other",
    "decoder/linear/b": "other",
    "decoder/linear/w": "other",
    "decoder/layer_norm/offset": "other",
    "decoder/layer_norm/scale": "other",
}
for _layer in range(LAYERS):
    _end = f"_{_layer}" if _layer else ""
    for _name in ("query", "key", "value", "linear"):
        TABLE[f"decoder/multi_head_attention{_end}/{_name}/b"] = "other"
        TABLE[f"decoder/multi_head_attention{_end}/{_name}/w"] = "0 -> 1"
    for _i in range(2):
        TABLE[f"decoder/mlp{_end}/~/linear_{_i}/b"] = "other"
        TABLE[f"decoder/mlp{_end}/~/linear_{_i}/w"] = "0 -> 1"
    for _name in ("offset", "scale"):
        TABLE[f"decoder/layer_norm_{_layer + 1}/{_name}"] = "other"


class Decoder(hk.Module):
    """Layers of attention and a perceptron behind one norm each."""

    def __call__(self, tokens):
        """Logits."""
        x = hk.Embed(VOCABULARY, WIDTH)(tokens)
        final = hk.LayerNorm(-1, True, True)
        init = hk.initializers.VarianceScaling()
        for _ in range(LAYERS):
            y = hk.LayerNorm(-1, True, True)(x)
            attention = hk.MultiHeadAttention(4, 8, w_init=init, model_size=WIDTH)
            y = y + attention(y, y, y, mask=jnp.tri(y.shape[1])[None, None])
            x = x + hk.nets.MLP([4 * WIDTH, WIDTH], activation=jax.nn.gelu)(y)
        return hk.Linear(VOCABULARY)(final(x))


MODEL = hk.without_apply_rng(hk.transform(lambda tokens: Decoder()(tokens)))


def _loss(params, tokens):
    logits = MODEL.apply(params, tokens[:, :-1])
    each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return each.mean()


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """The loop of Haiku's examples, its dictionaries placed by name and shape."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    key, batch = jax.random.key(0), jnp.zeros((BATCH, LENGTH), int)
    shapes = jax.eval_shape(MODEL.init, key, batch)
    place = lambda _module, _name, x: P("fsdp") if x.ndim == 2 else P()
    specs = hk.data_structures.map(place, shapes)
    placed = lambda specs: jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
    tx = _optimizer(method, specs)
    with jax.set_mesh(mesh):
        params = jax.jit(MODEL.init, out_shardings=placed(specs))(key, batch)
        state = jax.jit(tx.init, out_shardings=placed(_state_specs(tx, params, specs)))(
            params
        )

        @jax.jit
        def step(params, state, tokens):
            value, grads = jax.value_and_grad(_loss)(params, tokens)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        start, saved = 0, folder and folder.with_suffix(".pickle")
        if saved and saved.exists():
            start, *trees = pickle.loads(saved.read_bytes())
            put = lambda x, like: jax.device_put(x, like.sharding)
            params, state = jax.tree.map(put, tuple(trees), (params, state))
        losses = []
        for number in range(start, steps):
            tokens = _trial.tokens(number, BATCH, LENGTH + 1, VOCABULARY)
            tokens = jax.device_put(tokens, NamedSharding(mesh, P("fsdp")))
            params, state, value = step(params, state, tokens)
            losses.append(float(value))
        if saved and not saved.exists():
            trees = jax.tree.map(np.asarray, (params, state))
            saved.write_bytes(pickle.dumps((steps, *trees)))
    return _trial.Run(losses, state, params, RULE)


def _state_specs(tx, params, specs):
    """Where the state lies: as our library says, or as optax mirrors parameters."""
    state = jax.eval_shape(tx.init, params)
    if hasattr(state, "method"):
        return om.state_specs(tx, params, specs)
    return optax.tree.map_params(
        tx, lambda _, s: s, state, specs, transform_non_params=lambda _: P()
    )


def _optimizer(method, specs):
    if method == "adamw":
        return optax.adamw(_trial.METHODS[method])
    placement = om.owners("fsdp", param_specs=specs)
    return _trial.recipe(method, dimension_numbers=RULE, placement=placement)


def used() -> _trial.Used:
    """The model by its loss."""
    tokens = _trial.tokens(0, BATCH, LENGTH + 1, VOCABULARY)
    params = jax.eval_shape(MODEL.init, jax.random.key(0), tokens)
    return _trial.Used(om.matrices.by_use(_loss, params, tokens), params, RULE)


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
