"""Penzai: `StatefulTrainer` on its Llama, shardings by the names of axes, Orbax.

Penzai has no checkpoints of its own; its shardings are made for Orbax's.
"""

import pathlib

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from penzai import pz
from penzai.models.transformer.variants import llamalike_common as llama
from penzai.toolshed import basic_training, sharding_util

import optax_matrix as om
from examples.frameworks import _trial
from optax_matrix.adapters import penzai_rule

VOCABULARY, LAYERS, BATCH, LENGTH = 64, 2, 8, 16
CONFIG = llama.LlamalikeTransformerConfig(
    num_kv_heads=2,
    query_head_multiplier=2,
    embedding_dim=32,
    projection_dim=8,
    mlp_hidden_dim=64,
    num_decoder_blocks=LAYERS,
    vocab_size=VOCABULARY,
    mlp_variant="swiglu",
    tie_embedder_and_logits=False,
)
AXES = {"embedding": "data", "batch": "data", "neurons": "model"}
AXES |= {"head_groups": "model", "vocabulary": "model"}

LAYER = {
    "pre_attention_norm/scale": "other",
    "attention/query": "0 -> 1, 2, 3",
    "attention/key": "0 -> 1, 2",
    "attention/value": "0 -> 1, 2",
    "attention/output": "0, 1, 2 -> 3",
    "pre_ffw_norm/scale": "other",
    "mlp/gating_linear": "0 -> 1",
    "mlp/value_linear": "0 -> 1",
    "mlp/out_linear": "0 -> 1",
}
LABELS = {
    "embedder.embeddings": "other",
    **{f"block_{i}/{k}.weights": v for i in range(LAYERS) for k, v in LAYER.items()},
    "final_norm/scale.weights": "other",
    "lm_head.weights": "other",
}
# The trainer's parameters are a tuple, in the order of the model.
TABLE = {f"{i}/value/data_array": v for i, v in enumerate(LABELS.values())}


def _loss(*, model, state, rng, tokens):
    del rng
    inputs, labels = tokens[{"seq": pz.slice[:-1]}], tokens[{"seq": pz.slice[1:]}]
    each = optax.softmax_cross_entropy_with_integer_labels
    logits = model(inputs).untag("vocabulary")
    loss = pz.nx.nmap(each)(logits, labels).untag("batch", "seq").mean().unwrap()
    return loss, state, loss


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """Penzai's trainer, with its parameters and state in a checkpoint."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    model = sharding_util.sharded_init(
        llama.build_llamalike_transformer,
        CONFIG,
        init_base_rng=jax.random.key(0),
        name="model",
        mesh=mesh,
        axis_name_to_mesh_name=AXES,
    )
    rule = penzai_rule.rule(model, "lm_head")
    if method == "adamw":
        tx = optax.adamw(_trial.METHODS[method])
    else:
        tx = _trial.recipe(method, dimension_numbers=rule)
    trainer = basic_training.StatefulTrainer.build(jax.random.key(1), model, tx, _loss)
    params = pz.unbind_params(model)[1]
    assert [x.label for x in params] == [f"model/{label}" for label in LABELS]
    held = lambda: (pz.freeze_params(params), trainer.state.value)

    def on_mesh(x):
        """Counts, which the trainer makes on one device, are on all of them."""
        x = jnp.asarray(x)
        single = len(x.sharding.device_set) == 1
        return jax.device_put(x, NamedSharding(mesh, P())) if single else x

    if folder and folder.exists():
        with ocp.StandardCheckpointer() as saved:
            like = jax.tree.map(on_mesh, held())
            values, trainer.state.value = saved.restore(folder, like)
        for parameter, value in zip(params, values, strict=True):
            parameter.update(value)
    losses = []
    while (step := int(trainer.state.value.step)) < steps:
        tokens = _trial.tokens(step, BATCH, LENGTH + 1, VOCABULARY)
        tokens = pz.nx.wrap(tokens).tag("batch", "seq")
        tokens = sharding_util.name_to_name_device_put(tokens, mesh, AXES)
        losses.append(float(trainer.step(tokens=tokens)))
    if folder and not folder.exists():
        with ocp.StandardCheckpointer() as saved:
            saved.save(folder, held())
    return _trial.Run(losses, trainer.state.value.opt_state, held()[0], rule)


def used() -> _trial.Used:
    """The model by a function of the tuple of its parameters, as the trainer has it."""
    model = llama.build_llamalike_transformer(
        CONFIG, init_base_rng=jax.random.key(0), name="model"
    )
    bare, params = pz.unbind_params(model, freeze=True)

    def call(params, tokens):
        inputs = pz.nx.wrap(tokens).tag("batch", "seq")
        return pz.bind_variables(bare, params)(inputs)

    tokens = _trial.tokens(0, BATCH, LENGTH, VOCABULARY)
    rule = om.matrices.by_use(call, params, tokens)
    return _trial.Used(rule, params, penzai_rule.rule(model, "lm_head"))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
