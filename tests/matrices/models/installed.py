"""Writes `installed.json`: trees of installed models, and what each leaf is.

Needs brax, diffusers 0.30, dm-haiku, e3nn-jax, equimo, equinox, esm2quinox, flax,
flaxmodels, jraph, netket, penzai and transformers 4.46. Nothing is initialized; the
trees are shapes. Of leaves that repeat, as layers do, two are kept.

python tests/matrices/models/installed.py
"""

import importlib.metadata
import json
import re
from pathlib import Path

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
from flax import nnx

KEY = jax.random.PRNGKey(0)
LLM = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
TEXT = {"vocab_size": 512, "max_position_embeddings": 32}


def of_transformers(name, config, inputs, **sizes):
    import transformers

    config = getattr(transformers, config)(**sizes)
    model = getattr(transformers, name)(config, _do_init=False)
    return jax.eval_shape(lambda key: model.init_weights(key, inputs), KEY)


def of_haiku(f, *inputs):
    init = hk.transform_with_state(f).init
    return jax.eval_shape(lambda key: init(key, *inputs), KEY)[0]


def vq_vae(x):
    z = hk.nets.MLP([32, 16], name="encoder")(x)
    z = hk.nets.VectorQuantizer(16, 64, 0.25)(z, True)
    return hk.nets.MLP([32, 12], name="decoder")(z["quantize"])


def language_rnn(x):
    core = hk.DeepRNN([hk.LSTM(64), hk.GRU(64), hk.VanillaRNN(48)])
    y, _ = hk.dynamic_unroll(core, hk.Embed(512, 32)(x), core.initial_state(2))
    return hk.Linear(512)(y)


def layer_stack(x):
    def block(h):
        g = hk.Linear(64)(hk.LayerNorm(-1, True, True)(h))
        return h + hk.Linear(16, name="out")(jax.nn.gelu(g))

    h = hk.experimental.layer_stack(6)(block)(hk.Linear(16, name="input")(x))
    return hk.Linear(10, name="logits")(h)


def graph_network(x):
    import jraph

    count = lambda n: jnp.array([n])
    n = jnp.zeros(7, int)
    graph = jraph.GraphsTuple(x, n[:, None] * 1.0, n, n, x[:1], count(5), count(7))
    layer = lambda name: lambda x: hk.Linear(32, name=name)(x)
    graph = jraph.GraphMapFeatures(*map(layer, ("edges", "nodes", "globals")))(graph)
    mlp = lambda name: jraph.concatenated_args(hk.nets.MLP([64, 32], name=name))
    return jraph.GraphNetwork(*map(mlp, ("edge_mlp", "node_mlp", "global_mlp")))(graph)


def equivariant(x):
    import e3nn_jax as e3nn

    x = e3nn.IrrepsArray("4x0e+4x1o", x)
    x = e3nn.haiku.Linear("16x0e+8x1o", name="linear_up")(x)
    return e3nn.haiku.Linear("16x0e+8x1o", name="linear_down")(x).array


def of_brax(agent, make, **parts):
    nets = importlib.import_module(f"brax.training.agents.{agent}.networks")
    nets = getattr(nets, make)(20, 6)
    init = lambda key: {k: getattr(nets, v).init(key) for k, v in parts.items()}
    return jax.eval_shape(init, KEY)


def of_diffusers(name, **sizes):
    import diffusers

    model = getattr(diffusers, name)(block_out_channels=(32, 64), **sizes)
    return jax.eval_shape(model.init_weights, KEY)


def equinox_layers(key):
    nn = eqx.nn
    return {
        "mlp": nn.MLP(8, 4, 32, 2, key=key),
        "gru": nn.GRUCell(8, 16, key=key),
        "lstm": nn.LSTMCell(8, 16, key=key),
        "attn": nn.MultiheadAttention(4, 32, key=key),
        "conv": nn.Conv2d(3, 16, 3, key=key),
        "up": nn.ConvTranspose2d(16, 8, 4, key=key),
        "depthwise": nn.Conv1d(32, 32, 4, groups=32, key=key),
        "table": nn.Embedding(100, 32, key=key),
        "scale": nn.LayerNorm((4, 32)),
    }


def ensemble(key):
    make = lambda key: eqx.nn.MLP(8, 4, 32, 2, key=key)
    return eqx.filter_vmap(make)(jax.random.split(key, 5))


def equimo(module, name, **sizes):
    make = getattr(importlib.import_module(f"equimo.models.{module}"), name)
    return eqx.filter_eval_shape(
        lambda key: make(in_channels=3, num_classes=10, key=key, **sizes), KEY
    )


def esm2(key):
    import esm2quinox

    sizes = {"num_layers": 2, "embed_size": 64, "num_heads": 4}
    return esm2quinox.ESM2(token_dropout=False, key=key, **sizes)


def penzai_llama():
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common as llama

    config = llama.LlamalikeTransformerConfig(
        num_kv_heads=2,
        query_head_multiplier=2,
        embedding_dim=64,
        projection_dim=16,
        mlp_hidden_dim=176,
        num_decoder_blocks=2,
        vocab_size=512,
        mlp_variant="swiglu",
        tie_embedder_and_logits=False,
    )

    def init(key):
        model = llama.build_llamalike_transformer(config, init_base_rng=key)
        return {v.label: v.value for v in pz.unbind_params(model)[1]}

    return jax.eval_shape(init, KEY)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attn = nnx.MultiHeadAttention(4, 64, rngs=rngs, decode=False)
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.up = nnx.Linear(64, 256, rngs=rngs)
        self.down = nnx.Linear(256, 64, rngs=rngs)
        self.layer_scale = nnx.Param(jnp.full(64, 1e-4))


class Scanned(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(512, 64, rngs=rngs)
        self.blocks = nnx.split_rngs(splits=6)(nnx.vmap(Block))(rngs)
        self.head = nnx.Linear(64, 512, rngs=rngs)


class Cells(nnx.Module):
    def __init__(self, rngs):
        self.lstm = nnx.LSTMCell(16, 32, rngs=rngs)
        self.fast = nnx.OptimizedLSTMCell(16, 32, rngs=rngs)
        self.gru = nnx.GRUCell(16, 32, rngs=rngs)
        self.lora = nnx.LoRA(16, 4, 32, rngs=rngs)
        self.heads = nnx.Einsum("bth,hnd->btnd", (16, 4, 8), (4, 8), rngs=rngs)
        self.conv = nnx.Conv(16, 32, (3,), rngs=rngs)


def of_nnx(module):
    return jax.eval_shape(lambda: nnx.state(module(nnx.Rngs(0)), nnx.Param))


def resnet18():
    import flaxmodels

    model = flaxmodels.ResNet18("logits", pretrained=None, num_classes=10)
    return jax.eval_shape(model.init, KEY, jnp.ones((1, 32, 32, 3)))["params"]


def boltzmann():
    import netket

    model = netket.models.RBM(alpha=2, param_dtype=complex)
    return jax.eval_shape(model.init, KEY, jnp.ones((1, 16)))["params"]


IMAGE = jnp.ones((1, 32, 32, 3))
# The package, the tree, and the answers: the first expression that matches counts.
# A letter for each axis: b batch, i input, o output; behind "/" the sections of the
# outputs, "-" for leaves of the other optimizer. Leaves with fewer than two axes are.
MODELS = {
    "GPT-2": (
        "transformers",
        lambda: of_transformers(
            "FlaxGPT2LMHeadModel",
            "GPT2Config",
            (1, 8),
            n_layer=2,
            n_embd=64,
            n_head=4,
            vocab_size=512,
            n_positions=32,
        ),
        {"wte|wpe": "-", "c_attn": "oi/3", "kernel": "oi"},  # Conv1D: (out, in).
    ),
    "LLaMA": (
        "transformers",
        lambda: of_transformers(
            "FlaxLlamaForCausalLM",
            "LlamaConfig",
            (1, 8),
            hidden_size=64,
            num_key_value_heads=2,
            **LLM,
            **TEXT,
        ),
        {"lm_head|embed": "-", "kernel": "io"},
    ),
    "BERT": (
        "transformers",
        lambda: of_transformers(
            "FlaxBertForPreTraining",
            "BertConfig",
            (1, 8),
            hidden_size=64,
            **LLM,
            **TEXT,
        ),
        {"embeddings/|seq_relationship": "-", "kernel": "io"},
    ),
    "BART classifier": (
        "transformers",
        lambda: of_transformers(
            "FlaxBartForSequenceClassification",
            "BartConfig",
            (1, 8),
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            **TEXT,
        ),
        {"embed_|shared|classification_head/out_proj": "-", "kernel": "io"},
    ),
    "CLIP": (
        "transformers",
        lambda: of_transformers(
            "FlaxCLIPModel",
            "CLIPConfig",
            ((1, 8), (1, 32, 32, 3)),
            text_config={"hidden_size": 64, **LLM, **TEXT},
            vision_config={
                "hidden_size": 96,
                "image_size": 32,
                "patch_size": 8,
                **LLM,
            },
            projection_dim=48,
        ),
        {"embedding": "-", "kernel": "io"},
    ),
    "ViT": (
        "transformers",
        lambda: of_transformers(
            "FlaxViTForImageClassification",
            "ViTConfig",
            (1, 32, 32, 3),
            hidden_size=64,
            image_size=32,
            patch_size=8,
            num_labels=10,
            **LLM,
        ),
        {"embeddings/|classifier": "-", "kernel": "io"},
    ),
    "Stable Diffusion U-Net": (
        "diffusers",
        lambda: of_diffusers(
            "FlaxUNet2DConditionModel",
            sample_size=16,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block=1,
            attention_head_dim=4,
            cross_attention_dim=48,
        ),
        {
            "conv|attentions_./proj_": "iiio",
            "ff/net_0/proj/kernel": "io/2",  # GEGLU.
            "kernel": "io",
        },
    ),
    "Stable Diffusion VAE": (
        "diffusers",
        lambda: of_diffusers(
            "FlaxAutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            sample_size=16,
        ),
        {"conv": "iiio", "kernel": "io"},
    ),
    "Haiku ResNet-18": (
        "dm-haiku",
        lambda: of_haiku(lambda x: hk.nets.ResNet18(10)(x, True), IMAGE),
        {"batchnorm|logits": "-", "conv": "iiio"},
    ),
    "MobileNet": (
        "dm-haiku",
        lambda: of_haiku(
            lambda x: hk.nets.MobileNetV1((1, 2), (16, 32), 10)(x, True), IMAGE
        ),
        {"batch_norm|logits|depthwise": "-", "conv": "iiio"},
    ),
    "VQ-VAE": (
        "dm-haiku",
        lambda: of_haiku(vq_vae, jnp.ones((4, 12))),
        {"quantizer": "-", "w$": "io"},
    ),
    "Language RNN": (
        "dm-haiku",
        lambda: of_haiku(language_rnn, jnp.ones((5, 2), int)),
        {
            "^embed|^linear": "-",
            "lstm/linear/w": "io/4",
            "gru/w": "io/3",
            "w$": "io",
        },
    ),
    "Haiku layer_stack": (
        "dm-haiku",
        lambda: of_haiku(layer_stack, jnp.ones((5, 12))),
        {"norm|logits|b$": "-", "stack.*w$": "bio", "w$": "io"},
    ),
    "Graph network": (
        "jraph",
        lambda: of_haiku(graph_network, jnp.ones((5, 8))),
        {"edges/w": "-", "w$": "io"},
    ),
    "Equivariant layers": (
        "e3nn-jax",
        lambda: of_haiku(equivariant, jnp.ones((3, 16))),
        {"": "io"},
    ),
    "PPO": (
        "brax",
        lambda: of_brax(
            "ppo",
            "make_ppo_networks",
            policy="policy_network",
            value="value_network",
        ),
        {"value/params/hidden_5": "-", "kernel": "io"},  # One output.
    ),
    "SAC": (
        "brax",
        lambda: of_brax(
            "sac", "make_sac_networks", policy="policy_network", q="q_network"
        ),
        {"q/params/MLP_./hidden_2": "-", "kernel": "io"},
    ),
    "Equinox layers": (
        "equinox",
        lambda: eqx.filter_eval_shape(equinox_layers, KEY),
        {
            "bias|table|scale|depthwise": "-",
            "gru": "oi/3",
            "lstm": "oi/4",
            "conv|up": "oiii",
            "weight": "oi",
        },
    ),
    "Equinox ensemble": (
        "equinox",
        lambda: eqx.filter_eval_shape(ensemble, KEY),
        {"bias": "-", "weight": "boi"},
    ),
    "Equimo ViT": (
        "equimo",
        lambda: equimo(
            "vit",
            "VisionTransformer",
            img_size=32,
            dim=64,
            patch_size=8,
            num_heads=[4],
            depths=[2],
        ),
        {"embed|token|head": "-", "qkv/weight": "oi/3", "weight": "oi"},
    ),
    "Equimo ConvNeXt": (
        "equimo",
        lambda: equimo("convnext", "ConvNeXt", depths=[1, 1], dims=[16, 32]),
        {"bias|dwconv|head": "-", "weight": "oiii"},
    ),
    "ESM-2": (
        "esm2quinox",
        lambda: eqx.filter_eval_shape(esm2, KEY),
        {
            "bias|norm|embed|logit_head/linear2": "-",
            "^layers.*weight": "boi",
            "weight": "oi",
        },
    ),
    "Penzai LLaMA": (
        "penzai",
        penzai_llama,
        {
            "embedder|lm_head": "-",
            "query": "iooo",
            "key|value.weights": "ioo",
            "output": "iiio",
            "linear": "io",
        },
    ),
    "Scanned NNX transformer": (
        "flax",
        lambda: of_nnx(Scanned),
        {
            "embed|head|bias|scale": "-",
            "attn/out": "biio",
            "attn": "bioo",
            "kernel": "bio",
        },
    ),
    "NNX cells": (
        "flax",
        lambda: of_nnx(Cells),
        {
            "bias": "-",
            "gru": "io/3",
            "fast": "io/4",
            "heads": "ioo",
            "conv": "iio",
            "": "io",
        },
    ),
    "ResNet-18": (
        "flaxmodels",
        resnet18,
        {"Dense_0": "-", "Conv": "iiio"},
    ),
    "Boltzmann machine": ("netket", boltzmann, {"": "io"}),
}


def layer_of(tree, keys):
    """The type of the layer of Equinox that holds a leaf, and its attribute."""
    for key in keys[:-1]:
        name = next(n for n in ("key", "name", "idx") if hasattr(key, n))
        attribute = getattr(key, name)
        tree = getattr(tree, attribute) if name == "name" else tree[attribute]
    kinds = [t for t in type(tree).__mro__ if t.__module__.startswith("equinox.nn")]
    return f"{kinds[0].__module__}.{kinds[0].__name__}" if kinds else None


def entries(tree, answers):
    from optax_matrix._paths import path_name

    found, seen = {}, {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not hasattr(leaf, "shape"):
            continue
        path = path_name(keys)
        like = re.sub(r"\d+", "#", path), leaf.shape
        seen[like] = seen.get(like, 0) + 1
        if seen[like] > 2:
            continue
        answer = next((a for p, a in answers.items() if re.search(p, path)), "-")
        found[path] = [
            list(leaf.shape),
            str(leaf.dtype),
            "-" if len(leaf.shape) < 2 else answer,
        ]
        if isinstance(tree, (eqx.Module, dict)) and (layer := _layer(tree, keys)):
            found[path].append(layer)
    return found


def _layer(tree, keys):
    try:
        return layer_of(tree, keys)
    except (TypeError, KeyError, AttributeError):
        return None


def write(models, script):
    """Writes the table of the models beside the script that lists them."""
    table = {}
    for name, (package, make, answers) in models.items():
        version = importlib.metadata.version(package)
        table[name] = {
            "source": f"{package} {version}",
            "leaves": entries(make(), answers),
        }
        print(name, len(table[name]["leaves"]), flush=True)
    lines = json.dumps(table, indent=1)
    lines = re.sub(r"\n {4,}", " ", lines).replace("[ ", "[").replace(" ]", "]")
    lines = re.sub(r"\n +\]", "]", lines)
    Path(script).with_suffix(".json").write_text(lines + "\n")


if __name__ == "__main__":
    write(MODELS, __file__)
