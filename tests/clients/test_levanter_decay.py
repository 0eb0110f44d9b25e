"""Levanter's own decay mask, on its own model, for every recipe.

Which leaves decay is written here by hand: those that `build_weight_decay_mask` is
documented to leave out are norms, embeddings and biases.
"""

import dataclasses

import jax
import pytest
from _registry import SMALL, TABLE

llama = pytest.importorskip("levanter.models.llama")
import draccus
import equinox as eqx
import haliax as hax
from levanter.optim.config import OptimizerConfig

import optax_matrix as om
from optax_matrix._paths import named_leaves
from optax_matrix.adapters.levanter import register

RULE = om.matrices.infer
RATE, DECAY = 0.02, 0.25
DECAYED = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
HEAD, KEPT = {"lm_head"}, {"token_embeddings", "input_layernorm", "norm"}
KEPT |= {"post_attention_layernorm"}
QUICK = {"muoneq", "aro", "alice", "poet"}


@pytest.fixture(scope="module")
def model():
    config = llama.LlamaConfig(
        max_seq_len=8,
        hidden_dim=8,
        intermediate_dim=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
    )
    model = config.build(hax.Axis("vocab", 12), key=jax.random.key(0))
    return eqx.filter(model, eqx.is_inexact_array)


def first_updates(name, model, **options):
    """What Levanter would add to the model in its first step, without and with decay.

    Both are one compiled program; the dictionaries are by path.
    """
    given = {"type": f"om_{name}", "learning_rate": RATE, "warmup": 0}
    same = {"other_learning_rate": RATE, **SMALL.get(name, {}), **options}
    config = draccus.decode(OptimizerConfig, {**given, **same})
    grads = jax.tree.map(lambda x: jax.numpy.cos(31 * x), model)

    @jax.jit
    def step(model, decay):
        tx = dataclasses.replace(config, weight_decay=decay).build(10)
        return tx.update(grads, tx.init(model), model)[0]

    return (named_leaves(step(model, decay)) for decay in (0.0, DECAY))


@pytest.fixture(scope="module", autouse=True)
def registered():
    with pytest.MonkeyPatch.context() as patch:
        known = OptimizerConfig.get_known_choices()
        patch.setattr(OptimizerConfig, "_choice_registry", dict(known))
        for name, recipe in TABLE.items():
            register(recipe, f"om_{name}")
        yield


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TABLE],
)
def test_exactly_the_leaves_of_the_default_mask_decay(name, model):
    plain, decayed = first_updates(name, model)
    seen = set()
    # A rotation keeps a matrix's singular values, MuonH its norm and that of the head.
    moved = {"poet": HEAD, "oft": HEAD, "muonh": set()}.get(name, DECAYED | HEAD)
    views = om.matrices.decisions.views_of(om.matrices.decisions.decide(model, RULE))
    for path, x in named_leaves(model).items():
        layer = path.split("/")[-3]
        seen.add(layer)
        rate = RATE
        if name == "splus" and path in views:  # Its decay has its updates' factor.
            rate *= 2 / (views[path].rows + views[path].cols)
        by_hand = plain[path] - (rate * DECAY * x if layer in moved else 0)
        assert (x != 0).any()
        assert jax.numpy.allclose(decayed[path], by_hand, rtol=1e-5, atol=1e-7), path
    assert seen == DECAYED | HEAD | KEPT


def test_modules_that_the_configuration_names(model):
    only = {"weight_decay_modules": ["mlp.up_proj"]}
    plain, decayed = first_updates("muoneq", model, **only)
    changed = {p for p in plain if (plain[p] != decayed[p]).any()}
    assert changed == {"transformer/layers/stacked/mlp/up_proj/weight/0"}


def test_every_number_of_a_recipe_is_a_field():
    for name, recipe in TABLE.items():
        fields = dataclasses.fields(OptimizerConfig.get_choice_class(f"om_{name}"))
        missing = set(recipe.recipe.signature.parameters) - {f.name for f in fields}
        assert missing == {"weight_decay_mask", "dimension_numbers"}
