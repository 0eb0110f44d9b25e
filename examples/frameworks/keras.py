"""Keras on JAX: `compile` and `fit` under `ModelParallel`, `BackupAndRestore`."""

import os
import pathlib

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from examples.frameworks import _trial
from optax_matrix.adapters.keras_optimizer import RULE, Matrix, by_use

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH = 64, 32, 2, 8, 16

LAYER = {
    "attention_norm/gamma": "other",
    "attention_norm/beta": "other",
    "attention/query/kernel": "0 -> 1, 2",
    "attention/query/bias": "other",
    "attention/key/kernel": "0 -> 1, 2",
    "attention/key/bias": "other",
    "attention/value/kernel": "0 -> 1, 2",
    "attention/value/bias": "other",
    "attention/attention_output/kernel": "0, 1 -> 2",
    "attention/attention_output/bias": "other",
    "up_norm/gamma": "other",
    "up_norm/beta": "other",
    "up/kernel": "0 -> 1",
    "up/bias": "other",
    "down/kernel": "0 -> 1",
    "down/bias": "other",
}
TABLE = {
    "embedding/embeddings": "other",
    "lm_head/kernel": "other",
    "lm_head/bias": "other",
    **{f"layer_{i}_{leaf}": g for i in range(LAYERS) for leaf, g in LAYER.items()},
}


def distribution() -> keras.distribution.ModelParallel:
    """Four devices share each weight, as tensor parallelism has it."""
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*embeddings"] = (None, "model")
    layouts[".*(query|key|value)/kernel"] = (None, "model", None)
    layouts[".*attention_output/kernel"] = ("model", None, None)
    layouts[".*(up|lm_head)/kernel"] = (None, "model")
    layouts[".*down/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layouts)


def model() -> keras.Model:
    """A decoder of Keras's own layers."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    tokens = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, name="embedding")(tokens)
    for i in range(LAYERS):
        name = f"layer_{i}_{{}}".format
        y = layers.LayerNormalization(name=name("attention_norm"))(x)
        attention = layers.MultiHeadAttention(4, WIDTH // 4, name=name("attention"))
        x = x + attention(y, y, use_causal_mask=True)
        y = layers.LayerNormalization(name=name("up_norm"))(x)
        y = layers.Dense(4 * WIDTH, "gelu", name=name("up"))(y)
        x = x + layers.Dense(WIDTH, name=name("down"))(y)
    return keras.Model(tokens, layers.Dense(VOCABULARY, name="lm_head")(x))


class Losses(keras.callbacks.Callback):
    """What Keras logs after each step: the mean loss of the epoch so far."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, _, logs=None):
        """Keeps the loss of a step."""
        self.found.append(float(logs["loss"]))


def train(method: str, steps: int, folder: pathlib.Path | None) -> _trial.Run:
    """Epochs of the same batches in the same order; `fit` restores and backs up."""
    keras.distribution.set_distribution(distribution())
    net, rate = model(), _trial.METHODS[method]
    optimizer = (
        keras.optimizers.AdamW(rate)
        if method == "adamw"
        else Matrix(method, rate, _trial.OPTIONS.get(method))
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer, loss)
    batches = [
        _trial.tokens(i, BATCH, LENGTH + 1, VOCABULARY) for i in range(_trial.STOP)
    ]
    data, losses = np.concatenate(batches), Losses()
    callbacks: list[keras.callbacks.Callback] = [losses]
    if folder:
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        callbacks.append(backup)
    net.fit(
        data[:, :-1],
        data[:, 1:],
        batch_size=BATCH,
        epochs=steps // _trial.STOP,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    state = [v.value for v in optimizer.variables]
    params = {v.path: v.value for v in net.trainable_variables}
    return _trial.Run(losses.found, state, params, RULE)


def used() -> _trial.Used:
    """The model by `stateless_call`."""
    net = model()
    params = {v.path: v.value for v in net.trainable_variables}
    return _trial.Used(by_use(net), params, RULE)


if __name__ == "__main__":
    _trial.main(train, TABLE, used)
