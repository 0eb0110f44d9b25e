"""Writes `held_out.json`: models that were read after the rule was finished.

Needs flaxdiff, flowjax, memax, nequix, netket, pdequinox and transformers 4.46, and
what `installed.py` needs.

python tests/matrices/models/held_out.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from installed import KEY, LLM, TEXT, of_transformers, write


def flow(key):
    import flowjax.distributions as distributions
    import flowjax.flows as flows

    base = distributions.Normal(jnp.zeros(4))
    sizes = {"flow_layers": 3, "nn_width": 32, "nn_depth": 2}
    return flows.masked_autoregressive_flow(key, base_dist=base, **sizes)


def nequix(key):
    from nequix.model import Nequix

    return Nequix(
        key=key,
        n_species=5,
        hidden_irreps="16x0e+8x1o",
        lmax=1,
        n_layers=2,
        radial_mlp_size=32,
        radial_mlp_layers=2,
        index_weights=False,
        layer_norm=True,
    )


def diffusion():
    from flaxdiff.models.simple_unet import Unet

    attention = [{"heads": 2}, {"heads": 2}]
    model = Unet(
        output_channels=3,
        emb_features=64,
        feature_depths=[16, 32],
        attention_configs=attention,
        num_res_blocks=1,
        num_middle_res_blocks=1,
    )
    inputs = jnp.ones((1, 16, 16, 3)), jnp.ones(1), jnp.ones((1, 7, 48))
    return jax.eval_shape(model.init, KEY, *inputs)["params"]


def emulators(key):
    from pdequinox import arch

    sizes = {"hidden_channels": 8, "activation": jax.nn.relu, "key": key}
    levels = {"num_levels": 2, "boundary_mode": "periodic"}
    return {
        "unet": arch.ClassicUNet(1, 1, 2, **levels, **sizes),
        "fno": arch.ClassicFNO(1, 1, 2, num_modes=4, num_blocks=2, **sizes),
    }


def group_network():
    import netket

    group = netket.graph.Chain(8).translation_group()
    model = netket.models.GCNN(
        symmetries=group, layers=2, features=4, param_dtype=float
    )
    return jax.eval_shape(model.init, KEY, jnp.ones((1, 8)))["params"]


def memory(key):
    from memax.equinox.train_utils import get_residual_memory_models

    sizes = {"input": 8, "hidden": 32, "output": 4, "num_layers": 2}
    models = get_residual_memory_models(key=key, **sizes)
    return {name: models[name] for name in ("S6", "LRU", "GRU", "DeltaNet", "Stack")}


MODELS = {
    "Autoregressive flow": (
        "flowjax",
        lambda: eqx.filter_eval_shape(flow, KEY),
        {"bias|permutation|args/0": "-", "weight": "boi"},
    ),
    "Nequix": (
        "nequix",
        lambda: eqx.filter_eval_shape(nequix, KEY),
        {"readout": "-", "weights": "io"},
    ),
    "Whisper": (
        "transformers",
        lambda: of_transformers(
            "FlaxWhisperForConditionalGeneration",
            "WhisperConfig",
            (1, 80, 3000),
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            vocab_size=512,
            max_target_positions=32,
            decoder_start_token_id=1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        {"embed": "-", "conv": "iio", "kernel": "io"},
    ),
    "wav2vec 2.0": (
        "transformers",
        lambda: of_transformers(
            "FlaxWav2Vec2ForCTC",
            "Wav2Vec2Config",
            (1, 1024),
            hidden_size=64,
            conv_dim=(32, 32),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            vocab_size=32,
            do_stable_layer_norm=True,
            feat_extract_norm="layer",
            **LLM,
        ),
        {
            "lm_head|weight_g": "-",
            "weight_v": "oii",
            "conv_layers": "iio",
            "kernel": "io",
        },
    ),
    "FlaxDiff U-Net": (
        "flaxdiff",
        diffusion,
        {
            "to_[qkv]/": "ioo",
            "to_out": "iio",
            "conv": "iiio",
            "kernel": "io",
        },
    ),
    "PDE emulators": (
        "pdequinox",
        lambda: eqx.filter_eval_shape(emulators, KEY),
        {"bias|spectral|fno/lifting": "-", "weight": "oii"},
    ),
    "Group-equivariant network": ("netket", group_network, {"kernel": "oii"}),
    "ELECTRA": (
        "transformers",
        lambda: of_transformers(
            "FlaxElectraForPreTraining",
            "ElectraConfig",
            (1, 8),
            hidden_size=64,
            embedding_size=32,
            **LLM,
            **TEXT,
        ),
        {"embeddings/|prediction/": "-", "kernel": "io"},
    ),
    "BEiT": (
        "transformers",
        lambda: of_transformers(
            "FlaxBeitForImageClassification",
            "BeitConfig",
            (1, 32, 32, 3),
            hidden_size=64,
            image_size=32,
            patch_size=8,
            num_labels=10,
            use_relative_position_bias=True,
            use_mask_token=True,
            vocab_size=64,
            **LLM,
        ),
        {"embeddings/|table|classifier": "-", "kernel": "io"},
    ),
    "Memory models": (
        "memax",
        lambda: eqx.filter_eval_shape(memory, KEY),
        {"bias|/w/weight": "-", "weight": "oi"},
    ),
}

if __name__ == "__main__":
    write(MODELS, __file__)
