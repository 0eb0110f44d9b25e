"""Gradients of a short training run, for tests that train nothing themselves."""

import functools
import gzip

import jax
import numpy as np
import optax
from flax import nnx

from examples.pretrain.config import ModelConfig
from examples.pretrain.data import DATA
from examples.pretrain.model import Llama

STEPS = 30
# Two query heads share a key and a value: kernels of k and v are half as wide as q's.
CONFIG = ModelConfig(
    embed=32,
    mlp=64,
    heads=4,
    kv_heads=2,
    layers=2,
    vocab=128,
    context=32,
    scan=False,
    dtype="float32",
)
BATCH = 16
TEXT = DATA / "tiny_shakespeare.txt.gz"


@functools.cache
def recorded():
    """Parameters at the start, and the float32 gradients of 30 steps of AdamW.

    Returns:
        Two flat dicts, of arrays and of arrays with the steps as a leading axis; leaves
        have the shapes of a decoder with grouped-query attention.
    """
    with jax.enable_x64(False):
        return _record()


def _record():
    graph, start = nnx.split(Llama(CONFIG, rngs=nnx.Rngs(0)))
    size = STEPS * BATCH * (CONFIG.context + 1)
    text = gzip.decompress(TEXT.read_bytes())[:size]
    windows = np.frombuffer(text, np.uint8).reshape(STEPS, BATCH, -1).astype(np.int32)
    tx = optax.adamw(3e-3)

    def loss(params, tokens):
        logits = nnx.merge(graph, params)(tokens[:, :-1])
        cross = optax.softmax_cross_entropy_with_integer_labels
        return cross(logits, tokens[:, 1:]).mean()

    @jax.jit
    def train(start, windows):
        def step(carry, tokens):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params, tokens)
            updates, state = tx.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), (value, grads)

        return jax.lax.scan(step, (start, tx.init(start)), windows)[1]

    losses, grads = train(start, windows)
    assert losses[-1] < losses[0] - 1, "the run learns"
    return _flat(start), _flat(grads)


def _flat(state):
    leaves = nnx.to_flat_state(state)
    return {"/".join(map(str, path)): np.asarray(x[...]) for path, x in leaves}
