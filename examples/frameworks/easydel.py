"""EasyDeL: its `Trainer` on a small Llama, its sharding rules, its checkpoints."""

import pathlib
import tempfile

import datasets
import easydel as ed
import jax.numpy as jnp
import numpy as np
from flax import nnx

import optax_matrix as om
from examples.frameworks import _trial
from optax_matrix.adapters import easydel as adapter

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 64, 32, 2, 8, 16

LAYER = {
    "input_layernorm/kernel": "other",
    "self_attn/q_proj/kernel": "0 -> 1",
    "self_attn/k_proj/kernel": "0 -> 1",
    "self_attn/v_proj/kernel": "0 -> 1",
    "self_attn/o_proj/kernel": "0 -> 1",
    "post_attention_layernorm/kernel": "other",
    "mlp/gate_proj/kernel": "0 -> 1",
    "mlp/up_proj/kernel": "0 -> 1",
    "mlp/down_proj/kernel": "0 -> 1",
}
TABLE = {
    "model/embed_tokens/embedding": "other",
    "model/norm/kernel": "other",
    "lm_head/kernel": "other",
    **{f"model/layers/{i}/{k}": g for i in range(LAYERS) for k, g in LAYER.items()},
}
adapter.register(*(n for n in _trial.METHODS if n != "adamw"))


class Trainer(ed.Trainer):
    """EasyDeL's trainer, and the loss of each step."""

    def on_step_end(self, state, metrics, step):
        """EasyDeL's hook after each step."""
        self.losses.append(float(metrics.loss))
        return super().on_step_end(state, metrics, step)


def model():
    """The model, sharded by EasyDeL's rules."""
    config = ed.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        attn_mechanism="vanilla",
        sharding_axis_dims=(1, 4, 1, 2, 1),
    )
    made = ed.LlamaForCausalLM(
        config=config, dtype=jnp.float32, param_dtype=jnp.float32, rngs=ed.Rngs(0)
    )
    return made.shard_model()


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """Epochs of the same batches in the same order; the trainer resumes by itself."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ed.TrainingArguments(
            model_name="trial",
            optimizer=method,
            extra_optimizer_kwargs=dict(_trial.OPTIONS.get(method, {})),
            learning_rate=_trial.METHODS[method],
            scheduler="none",
            num_train_epochs=steps // _trial.STOP,
            max_training_steps=steps,
            total_batch_size=BATCH,
            max_length=LENGTH,
            shuffle_train_dataset=False,
            save_directory=str(folder or scratch),
            resume_if_possible=bool(folder),
            do_last_save=bool(folder),
            use_wandb=False,
            report_steps=1,
            progress_bar_type="json",
        )
        rows = np.concatenate(
            [_trial.tokens(i, BATCH, LENGTH, VOCABULARY) for i in range(_trial.STOP)]
        ).astype(np.int32)
        data = datasets.Dataset.from_dict(
            {"input_ids": rows.tolist(), "attention_mask": np.ones_like(rows).tolist()}
        )
        trainer = Trainer(arguments=arguments, model=model(), dataset_train=data)
        trainer.losses = []
        state = trainer.train().state
    return _trial.Run(trainer.losses, state.opt_state, state.graphstate)


def used() -> _trial.Used:
    """The model by its call, on its mesh."""
    net = model()
    with net.mesh:
        tokens = _trial.tokens(0, BATCH, LENGTH, VOCABULARY)
        rule = om.matrices.by_use(net, tokens.astype(np.int32))
    return _trial.Used(rule, nnx.state(net, nnx.Param))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
