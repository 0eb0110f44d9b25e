"""Tunix: its command line, `PeftTrainer` on a small Qwen3, Orbax."""

import json
import pathlib
import tempfile

import jax
import numpy as np
from flax import nnx
from tunix.cli import config
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.sft import hooks, peft_trainer, utils as masks
from tunix.utils import mesh as meshes

import optax_matrix as om
from examples.frameworks import _trial
from optax_matrix.adapters import tunix as adapter

VOCABULARY, LAYERS, BATCH, LENGTH = 64, 2, 8, 16
MODEL = ModelConfig(
    num_layers=LAYERS,
    vocab_size=VOCABULARY,
    embed_dim=32,
    hidden_dim=64,
    num_heads=4,
    head_dim=8,
    num_kv_heads=4,
    rope_theta=10_000,
    norm_eps=1e-6,
)

LAYER = {
    "input_layernorm/w": "other",
    "attn/q_proj/w": "0 -> 1, 2",
    "attn/k_proj/w": "0 -> 1, 2",
    "attn/v_proj/w": "0 -> 1, 2",
    "attn/o_proj/w": "0, 1 -> 2",
    "attn/q_norm/w": "other",
    "attn/k_norm/w": "other",
    "post_attention_layernorm/w": "other",
    "mlp/gate_proj/kernel": "0 -> 1",
    "mlp/up_proj/kernel": "0 -> 1",
    "mlp/down_proj/kernel": "0 -> 1",
}
TABLE = {
    "embedder/input_embedding": "other",
    "final_norm/w": "other",
    "lm_head/w": "other",
    **{f"layers/{i}/{leaf}": g for i in range(LAYERS) for leaf, g in LAYER.items()},
}

BASE = {
    "model_config": {
        "model_name": "qwen3",
        "model_source": "internal",
        "mesh": {"shape": "(4, 2)", "axis_names": "('fsdp', 'tp')"},
    },
    "tokenizer_config": {"tokenizer_type": "sentencepiece", "tokenizer_path": ""},
    "optimizer_config": {"opt_type": "adamw", "learning_rate": 1e-3},
    "training_config": {},
}


def configured(overrides: dict) -> config.HyperParameters:
    """What the command line makes of a base configuration and ``key=value``."""
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / "base.yaml"
        base.write_text(json.dumps(BASE))
        given = [f"{key}={value}" for key, value in overrides.items()]
        return config.HyperParameters(["peft_main", str(base), *given])


def model(mesh: jax.sharding.Mesh) -> Qwen3:
    """The model, sharded as its authors say, its zero kernels as if pretrained."""

    @nnx.jit
    def create():
        rngs = nnx.Rngs(0)
        made, init = Qwen3(MODEL, rngs=rngs), nnx.initializers.lecun_normal()
        for layer in made.layers:
            for kernel in ("gate_proj", "up_proj", "down_proj"):
                weight = getattr(layer.mlp, kernel).kernel
                weight[...] = init(rngs.params(), weight.shape)
        state = nnx.state(made)
        specs = nnx.get_partition_spec(state)
        nnx.update(made, jax.lax.with_sharding_constraint(state, specs))
        return made

    with mesh:
        return create()


class Losses(hooks.TrainingHooks):
    """The loss of each step, as the trainer reports it."""

    def __init__(self):
        self.found = []

    def on_train_start(self, train_ctx):
        """Nothing."""

    def on_train_end(self, train_ctx):
        """Nothing."""

    def on_train_step_start(self, train_ctx):
        """Nothing."""

    def on_train_step_end(self, _, __, train_loss):
        """Keeps the loss of a step."""
        self.found.append(float(train_loss))

    def on_eval_step_start(self, train_ctx):
        """Nothing."""

    def on_eval_step_end(self, train_ctx, eval_loss):
        """Nothing."""


def inputs(x: peft_trainer.TrainingInput) -> dict:
    """As `tunix.cli.peft_main` makes them."""
    real = x.input_mask
    return {
        "input_tokens": x.input_tokens,
        "input_mask": real,
        "positions": masks.build_positions_from_mask(real),
        "attention_mask": masks.make_causal_attn_mask(real),
    }


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """The steps of `PeftPipeline.run_peft_trainer`, with a model made here."""
    adapter.register(*(name for name in _trial.METHODS if name != "adamw"))
    options = {"learning_rate": _trial.METHODS[method]} | _trial.OPTIONS.get(method, {})
    given = {f"optimizer_config.{key}": value for key, value in options.items()}
    given |= {
        "optimizer_config.opt_type": method,
        "training_config.max_steps": steps,
        "training_config.eval_every_n_steps": 1000,
    }
    if folder:
        given["training_config.checkpoint_root_directory"] = folder
    settings = configured(given)
    mesh = meshes.create_mesh(*settings.parse_mesh_config("model_config"))
    trainer = peft_trainer.PeftTrainer(
        model(mesh),
        settings.create_optimizer("optimizer_config"),
        peft_trainer.TrainingConfig(
            **settings.obtain_training_config_dict("training_config")
        ),
    ).with_gen_model_input_fn(inputs)
    losses = Losses()
    trainer.with_training_hooks(losses)
    tokens = (_trial.tokens(i, BATCH, LENGTH, VOCABULARY) for i in range(steps))
    batches = [
        peft_trainer.TrainingInput(input_tokens=x, input_mask=np.ones(x.shape, bool))
        for x in tokens
    ]
    with mesh:
        trainer.train(batches)
    state = nnx.state(trainer.optimizer, nnx.optimizer.OptState)
    return _trial.Run(losses.found, state, nnx.state(trainer.model, nnx.Param))


def used() -> _trial.Used:
    """The model by its call, with what the trainer passes."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (jax.sharding.AxisType.Auto,) * 2)
    net, tokens = model(mesh), _trial.tokens(0, BATCH, LENGTH, VOCABULARY)
    mask = np.ones(tokens.shape, bool)
    x = inputs(peft_trainer.TrainingInput(input_tokens=tokens, input_mask=mask))
    del x["input_mask"]
    call = lambda net, x: net(**x, cache=None)
    rule = om.matrices.by_use(call, net, x)
    return _trial.Used(rule, nnx.state(net, nnx.Param))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
