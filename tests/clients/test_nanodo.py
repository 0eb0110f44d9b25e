"""nanodo: its model's names and boxes, its decay mask, its `MultiSteps`.

Stand-in, not importable from a package index: `nanodo/model.py`, `fsdp.py` and
`optimizer.py` of google-deepmind/nanodo. Modules, parameter names, shapes and
partitioning are theirs; what is written here is ours, and smaller.
"""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from clients._training import assert_close, update

import optax_matrix as om
from optax_matrix.adapters import nanodo

D, HEADS, LENGTH, VOCAB, F = 8, 2, 6, 11, 16


def boxed(*axes):
    return nn.with_partitioning(nn.initializers.xavier_uniform(), axes)


class CausalAttn(nn.Module):
    @nn.compact
    def __call__(self, x):
        heads, init = (HEADS, D // HEADS), boxed("data", None, None)
        q, k, v = (
            nn.DenseGeneral(heads, use_bias=False, kernel_init=init, name=name)(x)
            for name in ("query", "key", "value")
        )
        h = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        init = boxed(None, None, "data")
        return nn.DenseGeneral(
            D, (-2, -1), use_bias=False, kernel_init=init, name="attn_out_proj"
        )(h)


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = boxed("data", None)
        x = nn.gelu(nn.Dense(F, use_bias=False, kernel_init=init)(x))
        return nn.Dense(D, use_bias=False, kernel_init=init)(x)


class TBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + CausalAttn()(nn.LayerNorm(use_bias=False)(x))
        return x + Mlp()(nn.LayerNorm(use_bias=False)(x))


class TransformerDo(nn.Module):
    def setup(self):
        embed = lambda n: nn.Embed(n, D, embedding_init=boxed(None, "data"))
        self.embed, self.pos_embed = embed(VOCAB), embed(LENGTH)
        self.blocks = [TBlock() for _ in range(2)]
        self.out_ln = nn.LayerNorm(use_bias=False)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.pos_embed(jnp.arange(LENGTH)[None])
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(self.out_ln(x))


class Config(types.SimpleNamespace):
    """The two ways in which nanodo reads its `ConfigDict`."""

    def get(self, name, default):
        return getattr(self, name, default)


CONFIG = Config(weight_decay=0.1, peak_learning_rate=1e-2)
MODEL = TransformerDo()
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (4, LENGTH))
PARAMS = MODEL.init(jax.random.key(0), TOKENS)["params"]


def loss(params, tokens):
    logits = MODEL.apply({"params": params}, tokens)[:, :-1]
    each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return jnp.mean(each)


def decay_mask(params, exclude=("scale", "embed")):
    """As `_params_mask`: no decay of what has one of these in its path."""
    named = lambda path, _: not any(n in jax.tree_util.keystr(path) for n in exclude)
    return jax.tree_util.tree_map_with_path(named, params)


def test_every_kernel_is_one_matrix():
    views = om.stacks.make_layout(nn.unbox(PARAMS)).views
    shapes = {p.split("/")[-2]: (v.batch, v.rows, v.cols) for p, v in views.items()}
    attention = dict.fromkeys(("query", "key", "value", "attn_out_proj"), (1, D, D))
    assert shapes == attention | {"Dense_0": (1, F, D), "Dense_1": (1, D, F)}
    assert len(views) == 2 * len(shapes)


@pytest.mark.broad
def test_boxes_and_multi_steps_take_the_steps_of_plain_matrices():
    """The output kernel moves as one matrix (heads * dim, D)."""
    base = nanodo.base_optimizer(CONFIG, lambda count: 1e-2 / (1 + count), decay_mask)
    tx = optax.MultiSteps(base, 2)
    state, params, compiled = tx.init(PARAMS), PARAMS, jax.jit(tx.update)
    grad = jax.jit(jax.grad(loss))
    halves = [grad(PARAMS, TOKENS[:2]), grad(PARAMS, TOKENS[2:])]
    for grads in halves:
        updates, state = compiled(grads, state, params)
        params = optax.apply_updates(params, updates)
    mean = nn.unbox(jax.tree.map(lambda a, b: (a + b) / 2, *halves))
    kernel = lambda t: nn.unbox(t)["blocks_0"]["CausalAttn_0"]["attn_out_proj"][
        "kernel"
    ]
    flat = lambda t: {"kernel": kernel(t).reshape(D, D)}
    bare = om.muoneq(1e-2)
    assert_close(flat(updates), update(bare, flat(PARAMS), flat(mean)))
    scales = lambda t: nn.unbox(t)["out_ln"]["scale"]
    assert jnp.abs(scales(updates)).max() <= 1e-2 * 1.001  # AdamW without decay.


@pytest.mark.broad
def test_it_trains():
    tx = nanodo.base_optimizer(CONFIG, optax.constant_schedule(1e-2))
    params, state = PARAMS, tx.init(PARAMS)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params, TOKENS)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for _ in range(20):
        params, state, value = step(params, state)
        losses.append(float(value))
    assert losses[-1] < 0.7 * losses[0]
