"""Levanter: a configuration by name, on models of haliax's layers.

Haliax and draccus are the real ones. `OptimizerConfig` is a stand-in where Levanter is
not installed; it follows `levanter/optim/config.py` of marin-community/marin: a draccus
registry with a rate, a decay, `lr_scheduler` and `build_weight_decay_mask`.
"""

import dataclasses
import importlib
import inspect
import sys
import types

import jax
import jax.numpy as jnp
import optax
import pytest
from clients._training import assert_close, update

import optax_matrix as om

draccus = pytest.importorskip("draccus")
hax = pytest.importorskip("haliax")
eqx = pytest.importorskip("equinox")

Embed, Mlp, Heads, Dim, Layers, Vocab = hax.make_axes(
    embed=8, mlp=16, heads=2, head_dim=4, layers=3, vocab=11
)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(draccus.ChoiceRegistry):
    learning_rate: float = 6e-4
    weight_decay: float = 0.1

    def lr_scheduler(self, num_train_steps):
        return optax.linear_schedule(self.learning_rate, 0.0, num_train_steps)

    def build_weight_decay_mask(self):
        return None


@pytest.fixture(scope="module")
def levanter():
    """The adapter, and the registry that it is in."""
    try:
        config = importlib.import_module("levanter.optim.config")
    except ModuleNotFoundError:
        config = types.ModuleType("levanter.optim.config")
        config.OptimizerConfig = OptimizerConfig
    with pytest.MonkeyPatch.context() as patch:
        names = ("levanter", "levanter.optim")
        for name in names:
            patch.setitem(sys.modules, name, sys.modules.get(name, config))
        patch.setitem(sys.modules, "levanter.optim.config", config)
        yield importlib.import_module("optax_matrix.adapters.levanter"), config


class Block(eqx.Module):
    q_proj: hax.nn.Linear
    o_proj: hax.nn.Linear
    up_proj: hax.nn.Linear
    norm: hax.nn.LayerNorm

    @staticmethod
    def init(*, key):
        q, o, up = jax.random.split(key, 3)
        heads = (Heads, Dim)
        return Block(
            hax.nn.Linear.init(Embed, heads, key=q, use_bias=True, out_first=True),
            hax.nn.Linear.init(heads, Embed, key=o, out_first=True),
            hax.nn.Linear.init(Embed, Mlp, key=up, out_first=False),
            hax.nn.LayerNorm.init(Embed),
        )


class Model(eqx.Module):
    embeddings: hax.nn.Embedding
    layers: hax.nn.Stacked
    lm_head: hax.nn.Linear


@pytest.fixture(scope="module")
def params():
    first, *keys = jax.random.split(jax.random.key(0), 1 + Layers.size)
    model = Model(
        hax.nn.Embedding.init(Vocab, Embed, key=first),
        hax.nn.Stacked.init(Layers, Block)(key=jnp.stack(keys)),
        hax.nn.Linear.init(Embed, Vocab, key=first, out_first=True),
    )
    return eqx.filter(model, eqx.is_inexact_array)


def test_layers_say_their_axes(params):
    views = om.stacks.make_layout(params, om.matrices.infer(params)).views
    assert {p: (v.batch, v.rows, v.cols) for p, v in views.items()} == {
        "layers/stacked/q_proj/weight/0": (3, 8, 8),
        "layers/stacked/o_proj/weight/0": (3, 8, 8),
        "layers/stacked/up_proj/weight/0": (3, 16, 8),
    }


@pytest.mark.broad
def test_the_configuration_moves_each_layer_as_the_bare_recipe_does(levanter, params):
    adapter, config = levanter
    adapter.register(om.muoneq)
    given = {"type": "muoneq", "learning_rate": 0.02, "b1": 0.9}
    tx = draccus.decode(config.OptimizerConfig, given).build(10)
    grads = jax.tree.map(lambda x: jnp.sin(17 * x), params)
    state = tx.init(params)
    updates, state = jax.jit(tx.update)(grads, state, params)
    rate = state.hyperparams["learning_rate"]

    def kernels(t):
        """(in, out) of every layer, cut out by hand."""
        q, o, up = (
            getattr(t.layers.stacked, n).weight.array
            for n in ("q_proj", "o_proj", "up_proj")
        )
        cut = {"q": q.reshape(3, 8, 8).mT, "o": o.reshape(3, 8, 8).mT, "up": up}
        return {n: {"kernel": x} for n, x in cut.items()}

    bare = om.muoneq(rate, b1=0.9, weight_decay=0.1)
    start = kernels(params)
    assert_close(kernels(updates), update(bare, start, kernels(grads)))


def test_full_model_takes_embeddings_and_head_too(levanter, params):
    adapter, config = levanter
    adapter.register(om.aro)
    given = {"type": "aro", "full_model": True}
    tx = draccus.decode(config.OptimizerConfig, given).build(10)
    state = jax.eval_shape(tx.init, params).inner_state
    held = sum(g.shape[0] for g in state.manifest.values())
    assert held == 3 * Layers.size + 2


def test_a_field_that_no_recipe_has_is_refused(levanter):
    adapter, config = levanter
    adapter.register(om.alice)
    given = {"type": "alice", "rnak": 4}
    with pytest.raises(draccus.utils.DecodingError, match="rnak"):
        draccus.decode(config.OptimizerConfig, given)


def test_the_stand_in_is_as_the_real_one():
    real = pytest.importorskip("levanter.optim.config").OptimizerConfig
    of = lambda kind: {f.name: f.default for f in dataclasses.fields(kind)}
    assert of(OptimizerConfig).items() <= of(real).items()
    ours, theirs = (repr(k.__dataclass_params__) for k in (OptimizerConfig, real))
    assert ours == theirs
    assert issubclass(real, draccus.choice_types.ChoiceRegistryBase)
    for name in ("register_subclass", "lr_scheduler", "build_weight_decay_mask"):
        ours = inspect.signature(getattr(OptimizerConfig, name)).parameters
        theirs = inspect.signature(getattr(real, name)).parameters
        assert list(ours) == list(theirs)[: len(ours)]
        rest = list(theirs.values())[len(ours) :]
        assert all(x.default is not x.empty for x in rest)
