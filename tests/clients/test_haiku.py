"""Haiku: `hk.transform` and its paths of module names."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from clients._training import NAMES, RECIPES, train

import optax_matrix as om
from optax_matrix.adapters import haiku_rule

hk = pytest.importorskip("haiku")

RULE = haiku_rule.rule("decoder/linear", "decoder/pos_embs")
TOKENS = np.random.default_rng(0).integers(0, 11, (4, 6))


class Decoder(hk.Module):
    """One block; the head has no name of its own, as in Haiku's example."""

    def __init__(self):
        super().__init__()
        init = hk.initializers.VarianceScaling()
        self.attention = hk.MultiHeadAttention(2, 4, w_init=init, model_size=8)
        shape, init = (6, 8), hk.initializers.TruncatedNormal(0.02)
        self.positions = hk.get_parameter("pos_embs", shape, init=init)

    def __call__(self, tokens):
        h = hk.Embed(11, 8)(tokens) + self.positions
        h = h + self.attention(h, h, h)
        h = h + hk.nets.MLP([16, 8])(hk.LayerNorm(-1, True, True)(h))
        return hk.Linear(11)(h)


MODEL = hk.without_apply_rng(hk.transform(lambda tokens: Decoder()(tokens)))


def loss(params):
    logits = MODEL.apply(params, TOKENS)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, TOKENS)
    return jnp.mean(losses)


def test_matrices_are_those_that_the_author_means():
    params = MODEL.init(jax.random.key(0), TOKENS)
    layout = om.stacks.make_layout(params, RULE)
    inner = {f"decoder/~/multi_head_attention/{n}/w" for n in ("query", "key", "value")}
    inner |= {"decoder/~/multi_head_attention/linear/w"}
    inner |= {f"decoder/mlp/~/linear_{i}/w" for i in (0, 1)}
    assert set(layout.views) == inner
    unnamed = set(om.stacks.make_layout(params).views) - inner
    assert "decoder/linear/w" in unnamed  # Why the adapter is needed.


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_trains(name):
    tx = getattr(om, name)(1e-2, dimension_numbers=RULE, **RECIPES[name])
    params = MODEL.init(jax.random.key(0), TOKENS)
    _, losses = train(tx, params, loss, 20)
    assert losses[-1] < 0.7 * losses[0]
