"""A vision transformer of Equinox's layers, trained with the adapter's rule."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from clients._training import RECIPES

import optax_matrix as om
from optax_matrix.adapters import equinox_rule

DIM, PATCHES, CLASSES = 8, 4, 3
RULE = equinox_rule.rule("^head/", "^positions")
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((6, 1, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, 6)


class Block(eqx.Module):
    norms: list
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(DIM), eqx.nn.LayerNorm(DIM)]
        self.attention = eqx.nn.MultiheadAttention(2, DIM, key=keys[0])
        self.mlp = eqx.nn.MLP(DIM, DIM, 2 * DIM, 1, key=keys[1])

    def __call__(self, x):
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class ViT(eqx.Module):
    conv: eqx.nn.Conv2d
    embedding: eqx.nn.Embedding
    positions: jax.Array
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 6)
        self.conv = eqx.nn.Conv2d(1, DIM, 4, 4, key=keys[0])
        self.embedding = eqx.nn.Embedding(1, DIM, key=keys[1])  # Of the class token.
        self.positions = 0.02 * jax.random.normal(keys[2], (PATCHES + 1, DIM))
        self.blocks = [Block(keys[3]), Block(keys[4])]
        self.head = eqx.nn.Linear(DIM, CLASSES, key=keys[5])

    def __call__(self, image):
        patches = self.conv(image).reshape(DIM, PATCHES).T
        x = jnp.concatenate([self.embedding.weight, patches]) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[0])


def loss(model):
    logits = jax.vmap(model)(IMAGES)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)
    return jnp.mean(each)


def test_weights_are_out_by_in():
    params = eqx.filter(ViT(jax.random.key(0)), eqx.is_inexact_array)
    views = om.stacks.make_layout(params, RULE).views
    shapes = {path: (v.batch, v.rows, v.cols) for path, v in views.items()}
    block = dict.fromkeys(
        [f"attention/{n}_proj/weight" for n in ("query", "key", "value", "output")],
        (1, DIM, DIM),
    )
    block["mlp/layers/0/weight"] = (1, 2 * DIM, DIM)
    block["mlp/layers/1/weight"] = (1, DIM, 2 * DIM)
    want = {f"blocks/{i}/{path}": s for i in (0, 1) for path, s in block.items()}
    assert shapes == want | {"conv/weight": (1, DIM, 16)}


@pytest.mark.broad
@pytest.mark.parametrize(("name", "options"), RECIPES.items(), ids=RECIPES)
def test_it_trains_with_the_whole_model_as_parameters(name, options):
    tx = getattr(om, name)(1e-2, dimension_numbers=RULE, **options)
    model = ViT(jax.random.key(0))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = tx.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for _ in range(15):
        model, state, value = step(model, state)
        losses.append(float(value))
    assert losses[-1] < 0.6 * losses[0]
