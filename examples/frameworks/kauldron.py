"""Kauldron: `kd.train.Trainer` from a konfig, its FSDP sharding and checkpoints.

The state follows the rule of the parameters: Kauldron replicates weights and state
unless a configuration asks for `FSDPSharding`, and that only from a size on.
"""

import pathlib
import tempfile
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from kauldron import konfig, kontext

import optax_matrix as om
from examples.frameworks import _trial

with konfig.imports():
    from kauldron import kd

    from examples.frameworks import kauldron as here
    from optax_matrix.adapters import kauldron as adapter

VOCABULARY, WIDTH, LAYERS, HEADS, BATCH, LENGTH = 64, 32, 2, 4, 8, 16
LAYER = {
    "LayerNorm_0/bias": "other",
    "LayerNorm_0/scale": "other",
    "LayerNorm_1/bias": "other",
    "LayerNorm_1/scale": "other",
    **{
        f"MultiHeadDotProductAttention_0/{name}/{leaf}": group
        for name in ("query", "key", "value")
        for leaf, group in {"kernel": "0 -> 1, 2", "bias": "other"}.items()
    },
    "MultiHeadDotProductAttention_0/out/kernel": "0, 1 -> 2",
    "MultiHeadDotProductAttention_0/out/bias": "other",
    "up/kernel": "0 -> 1",
    "up/bias": "other",
    "down/kernel": "0 -> 1",
    "down/bias": "other",
}
TABLE = {
    "embed/embedding": "other",
    "norm/bias": "other",
    "norm/scale": "other",
    "head/kernel": "other",
    **{f"layer_{i}/{k}": v for i in range(LAYERS) for k, v in LAYER.items()},
}


class Layer(nn.Module):
    """Attention and an MLP, each behind a norm."""

    @nn.compact
    def __call__(self, x):
        """The layer's output."""
        mask = nn.make_causal_mask(x[..., 0])
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(HEADS)(y, mask=mask)
        y = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(WIDTH, name="down")(y)


class Model(nn.Module):
    """A decoder; Kauldron passes what `tokens` names in its context."""

    tokens: kontext.Key = "batch.tokens"

    @nn.compact
    def __call__(self, tokens):
        """The logits."""
        x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens[:, :-1])
        for i in range(LAYERS):
            x = Layer(name=f"layer_{i}")(x)
        x = nn.LayerNorm(name="norm")(x)
        logits = nn.Dense(VOCABULARY, use_bias=False, name="head")(x)
        return {"logits": logits}


class Rows:
    """Row ``i`` belongs to the batch of step ``i // BATCH``."""

    def __len__(self) -> int:
        """The rows of all steps."""
        return BATCH * (_trial.STEPS + 1)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One row."""
        step, row = divmod(int(index), BATCH)
        rows = _trial.tokens(step, BATCH, LENGTH + 1, VOCABULARY)
        return {"tokens": rows[row].astype(np.int32), "labels": rows[row, 1:, None]}


def adamw(learning_rate: float) -> optax.GradientTransformation:
    """Kauldron has optax's own, behind its named chain."""
    return optax.named_chain(
        ("clip", optax.clip_by_global_norm(1.0)), ("step", optax.adamw(learning_rate))
    )


def configuration(method: str, steps: int, folder: str) -> Any:
    """What a file of Kauldron's examples says, as konfig reads it."""
    cfg = kd.train.Trainer()
    cfg.workdir, cfg.seed, cfg.num_train_steps = folder, 0, steps
    cfg.train_ds = kd.data.py.DataSource(
        data_source=here.Rows(), shuffle=False, batch_size=BATCH, num_workers=0
    )
    cfg.model = here.Model(tokens="batch.tokens")
    loss = {"logits": "preds.logits", "labels": "batch.labels"}
    cfg.train_losses = {"loss": kd.losses.SoftmaxCrossEntropyWithIntLabels(**loss)}
    cfg.log_metrics_every = 1
    shard = kd.sharding.FSDPSharding(min_size_to_shard_mb=0)
    cfg.sharding = kd.sharding.ShardingStrategy(params=shard, opt_state=shard)
    cfg.checkpointer = kd.ckpts.Checkpointer(save_interval_steps=_trial.STOP)
    rate = _trial.METHODS[method]
    if method == "adamw":
        cfg.optimizer = here.adamw(rate)
    else:
        options = _trial.OPTIONS.get(method, {})
        cfg.optimizer = adapter.optimizer(method, rate, **options)
    return cfg


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """`Trainer.train`, with a writer that keeps the losses."""
    with tempfile.TemporaryDirectory() as scratch:
        cfg = configuration(method, steps, str(folder or scratch))
        losses: list[float] = []
        trainer = konfig.resolve(cfg)
        writer = type(trainer.writer)

        def note(_, step, scalars):
            if step < steps:  # It trains one step more than it is asked for.
                losses.append(float(scalars["losses/loss"]))

        kept, writer.write_scalars = writer.write_scalars, note
        try:
            state, _ = trainer.train()
        finally:
            writer.write_scalars = kept
        jax.block_until_ready(state)
    return _trial.Run(losses, state.opt_state, state.params)


def used() -> _trial.Used:
    """The model by `apply`."""
    tokens = _trial.tokens(0, BATCH, LENGTH + 1, VOCABULARY)
    model = Model()
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    call = lambda params, tokens: model.apply({"params": params}, tokens)
    return _trial.Used(om.matrices.by_use(call, params, tokens), params)


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
