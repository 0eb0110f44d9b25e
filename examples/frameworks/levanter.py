"""Levanter: `TrainLmConfig` read by draccus, `Trainer`, its mesh and checkpoints.

As `levanter.main.train_lm` puts them together. Parameters are sharded over eight
devices as Levanter does it: ``embed`` over four ("data"), ``mlp`` over two ("model").
"""

import dataclasses
import pathlib
import tempfile
from typing import Any

import draccus
import haliax as hax
import jax
import numpy as np
from levanter.data.dataset import AsyncDataset
from levanter.main.train_lm import TrainLmConfig
from levanter.models.lm_model import LmExample
from levanter.trainer import Trainer, initialize
from levanter.trainer_state import trainables_only

import optax_matrix as om
from examples.frameworks import _trial, losses as _losses
from optax_matrix.adapters.levanter import register

VOCABULARY, BATCH, LENGTH = 64, 8, 16

# Levanter has a `soap` of its own.
NAMES = {"adamw": "adam", "soap": "om_soap"}
for recipe in (om.muoneq, om.soap, om.aro, om.alice, om.poet):
    register(recipe, NAMES.get(recipe.__name__))

LAYERS = "transformer/layers/stacked"
# Axes: layer, then outputs, then inputs; query heads are grouped by those of the keys.
TABLE = {
    "embeddings/token_embeddings/weight/0": "other",
    f"{LAYERS}/self_attn/q_proj/weight/0": "4 -> 1, 2, 3",
    f"{LAYERS}/self_attn/k_proj/weight/0": "3 -> 1, 2",
    f"{LAYERS}/self_attn/v_proj/weight/0": "3 -> 1, 2",
    f"{LAYERS}/self_attn/o_proj/weight/0": "2, 3 -> 1",
    f"{LAYERS}/mlp/gate_proj/weight/0": "2 -> 1",
    f"{LAYERS}/mlp/up_proj/weight/0": "2 -> 1",
    f"{LAYERS}/mlp/down_proj/weight/0": "2 -> 1",
    f"{LAYERS}/input_layernorm/weight/0": "other",
    f"{LAYERS}/post_attention_layernorm/weight/0": "other",
    "transformer/norm/weight/0": "other",
    "lm_head/weight/0": "other",
}


class Examples(AsyncDataset[LmExample]):
    """Example ``i`` is row ``i % batch`` of the batch of step ``i // batch``."""

    def __init__(self, batch_of_step: Any, batch: int):
        super().__init__()
        self.batch_of_step, self.batch = batch_of_step, batch

    async def async_len(self) -> int:
        raise ValueError("These examples are endless; ask `is_finite` first.")

    def is_finite(self) -> bool:
        return False

    async def get_batch(self, indices: Any) -> list[LmExample]:
        return [self._example(*divmod(i, self.batch)) for i in indices]

    def _example(self, step: int, row: int) -> LmExample:
        tokens = np.asarray(self.batch_of_step(step)[row], np.int32)
        return LmExample.causal(hax.named(tokens, hax.Axis("position", len(tokens))))


def configuration(
    optimizer: dict[str, Any], width: int, layers: int, heads: int, **trainer: Any
) -> TrainLmConfig:
    """What ``config/*.yaml`` says, as draccus reads it."""
    given = {
        "model": {
            "type": "llama",
            "hidden_dim": width,
            "intermediate_dim": 2 * width,
            "num_layers": layers,
            "num_heads": heads,
            "num_kv_heads": heads // 2,
            "max_seq_len": _losses.LENGTH + 1,
            "gradient_checkpointing": False,
            "attn_backend": "vanilla",
        },
        "optimizer": optimizer,
        "trainer": {
            "tracker": {"type": "noop"},
            "require_accelerator": False,
            "log_jaxprs": False,
            "log_xla_hlo": False,
            **trainer,
        },
    }
    return draccus.decode(TrainLmConfig, given)


def run(
    config: TrainLmConfig, vocabulary: int, batch_of_step: Any, stop: int
) -> tuple[list[float], Any]:
    """Trains up to a step as `levanter.main.train_lm` does: losses, and the state."""
    initialize(config)
    optimizer = config.optimizer.build(config.trainer.num_train_steps)
    settings = dataclasses.replace(config.trainer, num_train_steps=stop)

    def loss_function(model, example, *, key=None):
        return model.compute_next_token_loss(example, key=key)

    with Trainer(settings, optimizer, loss_function) as trainer:
        model_key, training_key = jax.random.split(jax.random.PRNGKey(settings.seed))
        Vocab = hax.Axis("vocab", vocabulary)
        state = trainer.initial_state(
            training_key, model_init=lambda: config.model.build(Vocab, key=model_key)
        )
        data = Examples(batch_of_step, settings.train_batch_size)
        loader = trainer.data_loader(data).iter_from_step(int(state.step))
        losses = {}  # Levanter calls hooks twice after the last step.
        trainer.add_hook(lambda info: losses.update({info.step: float(info.loss)}))
        state = trainer.train(state, loader).state
        return list(losses.values()), state


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """Levanter's trainer on eight devices, with its own restart from a checkpoint."""
    optimizer = {
        "type": NAMES.get(method, method),
        "learning_rate": _trial.METHODS[method],
        **_trial.OPTIONS.get(method, {}),
    }
    rows = lambda step: _trial.tokens(step, BATCH, LENGTH, VOCABULARY)
    with tempfile.TemporaryDirectory() as scratch:
        config = configuration(
            optimizer,
            width=64,
            layers=2,
            heads=4,
            id="trial",
            log_dir=scratch,
            num_train_steps=_trial.STEPS,
            train_batch_size=BATCH,
            mesh={"axes": {"data": 4, "model": 2}},
            checkpointer={"base_path": str(folder or scratch)},
        )
        losses, state = run(config, VOCABULARY, rows, steps)
    params = trainables_only(state.model, True)
    rule = om.matrices.infer(params)
    return _trial.Run(losses, state.opt_state, params, rule)


def losses(method: str, rate: float, seed: int, steps: int) -> list[float]:
    """What `examples.frameworks.losses` asks for: one device, a text."""
    optimizer = {
        "type": NAMES.get(method, method),
        "learning_rate": rate,
        "weight_decay": 0.1,
        "warmup": 0.1,
    }
    rows = lambda step: _losses.text(seed, step)
    with tempfile.TemporaryDirectory() as scratch:
        config = configuration(
            optimizer,
            width=_losses.WIDTH,
            layers=_losses.LAYERS,
            heads=_losses.HEADS,
            id="losses",
            seed=seed,
            log_dir=scratch,
            num_train_steps=steps,
            train_batch_size=_losses.BATCH,
            checkpointer={"base_path": scratch},
        )
        found, _ = run(config, _losses.VOCABULARY, rows, steps)
    return found


def used() -> _trial.Used:
    """The model by its loss of one example; on its own, the names of its axes."""
    config = configuration({"type": "adam"}, width=64, layers=2, heads=4)
    Vocab = hax.Axis("vocab", VOCABULARY)
    model = config.model.build(Vocab, key=jax.random.PRNGKey(0))
    tokens = np.zeros(LENGTH, np.int32)
    example = LmExample.causal(hax.named(tokens, hax.Axis("position", LENGTH)))
    loss = lambda model, example: model.compute_next_token_loss(example, key=None)
    rule = om.matrices.by_use(loss, model, example)
    params = trainables_only(model, True)
    return _trial.Used(rule, params, om.matrices.infer(params))


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
