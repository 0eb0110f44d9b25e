"""The optimizers of well-known runs and frameworks, each as one expression.

Copy an expression to change it: every recipe takes `placement`, `mu_dtype` and the
other keywords that `help(om.recipes)` lists, and rates may be schedules. Schedules, and
clipping unless said, are no part of a line. The sources run Newton-Schulz in bfloat16;
here it does so on GPUs and TPUs, and runs in float32 on CPUs. "Read" is said of code
that was read for this file.
"""

from functools import partial

import jax
import optax

import optax_matrix as om

Rate = optax.ScalarOrSchedule
Optimizer = optax.GradientTransformation


def nvidia_muon(rate: Rate) -> Optimizer:
    """Muon of NVIDIA's "SOAP, Muon, and Beyond": sixteen steps of Polar Express.

    Source: https://arxiv.org/abs/2607.20548, as reported by a review (0.9, 0.1, and
    sixteen steps); https://github.com/NVIDIA-NeMo/Emerging-Optimizers, muon.py and
    muon_utils.py (read: plain momentum, size, and eight rows whose last repeats).
    Numbers: momentum 0.9, weight decay 0.1, updates of the size of Adam's with
    b1 = 0.9, sqrt((1 - 0.9) / (1 + 0.9)) = 0.229.
    Not reproduced: rates are AdamW's, with the root of the batch. The review does not
    give the optimizer of the other leaves; here it is AdamW(0.9, 0.95).
    Use: `tx = field_recipes.nvidia_muon(3e-4)`, AdamW's rate.
    """
    return om.muon(
        rate,
        b1=0.9,
        nesterov=False,
        polar=partial(
            om.linalg.newton_schulz,
            coefficients=om.linalg.polar_express(8),
            steps=16,
        ),
        scaling=om.target_rms((0.1 / 1.9) ** 0.5),
        weight_decay=0.1,
    )


def nvidia_kl_soap(rate: Rate) -> Optimizer:
    """Real-time KL-SOAP of the same paper, against loss spikes with large batches.

    Source: https://arxiv.org/abs/2607.20548, as reported by a review (weight decay);
    https://github.com/NVIDIA-NeMo/Emerging-Optimizers, legacy_soap/soap.py with
    `use_kl_shampoo=True` (read: decay rates, bias correction, a power step in every
    step, and factors that contain a gradient before it is projected).
    Numbers: decay rates 0.9, 0.95 and 0.95 (factors), weight decay 0.1.
    Not reproduced: Adam's epsilon of 1e-8; the eigendecomposition of the first step,
    here a power step; the bias correction of the factors; eigenvalues from the current
    factor, here averages. The program starts them at 1e-8, so the first gradient rules
    the factors for 100 to 300 steps; here they start at the size of that gradient.
    Use: `tx = field_recipes.nvidia_kl_soap(3e-4)`, AdamW's rate.
    """
    return om.kl_soap(
        rate,
        b1=0.9,
        b2=0.95,
        b3=0.95,
        update_interval=1,
        bias_correction=True,
        weight_decay=0.1,
    )


def marin_hero(rate: Rate = 0.003291, other_rate: Rate = 0.000759) -> Optimizer:
    """Marin's 535B-A23B: MuonH for matrices, AdamH for the head, Adam for the rest.

    Source: https://github.com/marin-community/marin/issues/8435 (the numbers) and
    experiments/grug/moe_hero_ep/optimizer.py there (the update).
    Numbers: momentum 0.95 with Nesterov, five steps of `YOU` ("quintic"), rate 0.003291
    for matrices and head; Adam(0.9, 0.95, eps 6.04e-15) at 0.000759, for the direction
    of the head, too. No weight decay and no clipping.
    Not reproduced: the schedule (linear, 1% warm-up, to 5%), and the law of rates,
    which `om.muonh` gives.
    Use: `tx = field_recipes.marin_hero()`; the head is known by its name ("lm_head").
    """
    return om.muonh(rate, eps=6.04e-15, other_learning_rate=other_rate)


def kimi_k3(rate: Rate, kv_b: tuple[int, int] = (128, 128)) -> Optimizer:
    """Kimi K3: Muon per head, at AdamW's size, and QK-clip.

    Source: https://arxiv.org/abs/2607.24653, Section 2.5, as reported by
    https://github.com/deepspeedai/DeepSpeed/issues/8367; the rest is Kimi K2's, as in
    `torchtitan_kimi_k2`.
    Numbers: momentum 0.95 with Nesterov, five steps, 0.2 sqrt(max(m, n)) for each head,
    weight decay 0.1. The key and the value of a head of `kv_b` are two matrices, with
    `qk_nope_head_dim` and `v_head_dim` rows. QK-clip follows each update:
    `params = om.clip_qk(params, max_logits)`, with threshold 100.
    Not reproduced: the schedule (1% warm-up).
    Use: `tx = field_recipes.kimi_k3(2e-4)`, for `kv_b` of shape (rank, heads, dim);
    flat kernels are in the guide. Without a router drop `include`.
    """
    return om.muon(
        rate,
        scaling="max",
        heads="split",
        dimension_numbers=om.matrices.by_path(
            include="router",
            numbers={"kv_b": om.MatrixDimensionNumbers(-3, -1, output_sections=kv_b)},
        ),
        weight_decay=0.1,
    )


def glm_5(rate: Rate) -> Optimizer:
    """GLM-5's "Muon Split": the up-projections of latent attention head by head.

    Source: https://arxiv.org/abs/2602.15763, as reported by
    https://github.com/deepspeedai/DeepSpeed/issues/8367.
    Numbers: none of GLM-5's could be read; these are Moonlight's: momentum 0.95, five
    steps, 0.2 sqrt(max(m, n)), weight decay 0.1.
    Not reproduced: the paper splits `q_b` and `kv_b` only; plain queries, keys and
    values, which its model does not have, would be split here, too.
    Use: `tx = field_recipes.glm_5(2e-4)`.
    """
    return om.muon(rate, scaling="max", heads="split", weight_decay=0.1)


def deepseek_v4(rate: Rate) -> Optimizer:
    """DeepSeek V4: ten Newton-Schulz steps of two kinds, updates of size 0.18.

    Source: https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro/resolve/main/DeepSeek_V4.pdf
    (Algorithm 1, Section 4.2.2), as reported by
    https://github.com/microsoft/dion/pull/67 (steps),
    https://github.com/AMD-AGI/Primus/pull/729 (0.18, momentum, epsilon) and
    https://github.com/AI-Hypercomputer/maxtext/pull/4065 (which leaves).
    Numbers: eight steps of (3.4445, -4.775, 2.0315), two of (2, -1.5, 0.5), momentum
    0.95 with Nesterov, weight decay 0.1, AdamW(0.9, 0.95, eps 1e-20) for embedding,
    head, norms and biases.
    Not reproduced: AdamW for biases and gates of hyper-connections whose names and
    shapes do not say so. Whether norms decay is not reported; here they do.
    Use: `tx = field_recipes.deepseek_v4(2e-4)`; without a router drop
    `dimension_numbers`.
    """
    return om.muon(
        rate,
        polar=partial(
            om.linalg.newton_schulz,
            coefficients=om.linalg.JORDAN * 8 + ((2.0, -1.5, 0.5),) * 2,
            steps=10,
        ),
        scaling=om.target_rms(0.18),
        dimension_numbers=om.matrices.by_path(include="router"),
        weight_decay=0.1,
        other=optax.adamw(rate, b2=0.95, eps=1e-20, weight_decay=0.1),
    )


def megatron_muon(rate: Rate) -> Optimizer:
    """Megatron's `--optimizer muon` with its defaults.

    Source: https://github.com/NVIDIA/Megatron-LM, file
    megatron/core/optimizer/optimizer_config.py (read).
    Numbers: momentum 0.95 without Nesterov, five steps of the table `YOU`
    ("quintic"), sqrt(max(m, n)) times an extra factor of 1, Adam(0.9, 0.999), weight
    decay 0.01 of all but vectors, gradients clipped to a norm of 1.
    Not reproduced: `muon_tp_mode="blockwise"`, which orthogonalizes each shard of a
    tensor-parallel matrix by itself; here matrices are whole. There is no default rate.
    Use: `tx = field_recipes.megatron_muon(1e-4)`.
    """
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        om.muon(
            rate,
            nesterov=False,
            polar=partial(om.linalg.newton_schulz, coefficients=om.linalg.YOU),
            scaling="sqrt_max",
            weight_decay=0.01,
            other=optax.adamw(
                rate,
                weight_decay=0.01,
                mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
            ),
        ),
    )


def torchtitan_kimi_k2(rate: Rate = 2.2e-4) -> Optimizer:
    """Kimi K2.5 to K2.7 in torchtitan: `match_rms_adamw`, latent attention by heads.

    Source: https://github.com/pytorch/torchtitan, models/kimi_k2_7/config_registry.py
    and distributed/flex_shard/dist_muon.py (read).
    Numbers: momentum 0.95 with Nesterov, five steps, 0.2 sqrt(max(m, n)) for each
    head, rate 2.2e-4 and weight decay 0.1 for all, AdamW(0.9, 0.95) for embedding,
    head and vectors, which decay, too. Routers get Muon. QK-clip (qk_clip.py) follows
    each update: `params = om.clip_qk(params, max_logits)`, with threshold 100.
    Not reproduced: the schedule, and AdamW for the vision tower (exclude it with
    `by_path`).
    Use: `tx = field_recipes.torchtitan_kimi_k2()`; without a router drop
    `dimension_numbers`.
    """
    return om.muon(
        rate,
        scaling="max",
        heads="split",
        dimension_numbers=om.matrices.by_path(include="router"),
        weight_decay=0.1,
        other=optax.adamw(rate, b2=0.95, weight_decay=0.1),
    )


def modded_nanogpt(rate: float = 0.023, other_rate: float = 0.008) -> Optimizer:
    """The main track of modded-nanogpt: NorMuon, Polar Express, cautious decay.

    Source: https://github.com/KellerJordan/modded-nanogpt, train_gpt.py (read).
    Numbers: momentum 0.95 with Nesterov, second moments of rows 0.9, rate 0.023;
    Adam(0.5, 0.95, eps 1e-10) at 0.008 for embedding and head. Decay is 1.2 times the
    square of the rate for matrices, and 0.005 x 150 times that of embedding and head.
    Not reproduced: queries and keys in pairs of heads; second moments of columns where
    a matrix has more columns than rows; the transposed `c_proj` and its double rate;
    Adam's other rates and moments, and that it runs in every other step; schedules of
    rate and momentum (0.85 to 0.95 in 300 steps and back in the last 50;
    `om.inject_hyperparams` can).
    Use: `tx = field_recipes.modded_nanogpt()`.
    """
    return om.normuon(
        rate,
        b2=0.9,
        polar=partial(
            om.linalg.newton_schulz,
            coefficients=om.linalg.started_below(om.linalg.POLAR_EXPRESS, 1.02),
        ),
        scaling="out/in",
        weight_decay=1.2 * rate,
        cautious_decay=True,
        other=optax.chain(
            optax.scale_by_adam(0.5, 0.95, 1e-10),
            om.add_cautious_decay(
                0.75 * other_rate,
                mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
            ),
            optax.scale_by_learning_rate(other_rate),
        ),
    )


def modded_nanogpt_track_3(rate: Rate = 0.0375, other_rate: Rate = 0.01) -> Optimizer:
    """Track 3 of modded-nanogpt, record 46: SOAP-Muon in every step, cautious decay.

    Source: https://github.com/KellerJordan/modded-nanogpt,
    records/track_3_optimization/results/20260619_cwd_rowfloor_tailema (read).
    Numbers: rate 0.0375, momentum 0.95, both sides rotated by factors of decay 0.9,
    renewed in every step, second moments 0.9, twelve steps of (2, -1.5, 0.5), cautious
    decay 0.025; Adam(0.8, 0.99, eps 1e-10) at 0.3 for the embedding, 1/320 for the
    head and 0.01 for vectors.
    Not reproduced: EMA-Nesterov, the radial brake and the pinned radius, the floor of
    row updates (`om.transforms.finish_step` has it, and a like brake), the average of
    the tail, the trust gate of `attn.proj`; Nesterov momentum, and its square as second
    moment (here the gradient's); bases of the last step; schedules; second moments of
    0.997 for biases. So this is not the record.
    Use: `tx = field_recipes.modded_nanogpt_track_3()`; embedding and head must be
    called "embed" and "lm_head".
    """
    return om.soap_muon(
        rate,
        b2=0.9,
        b3=0.9,
        update_interval=1,
        side="both",
        polar=partial(
            om.linalg.newton_schulz, coefficients=((2.0, -1.5, 0.5),), steps=12
        ),
        power=1.0,
        weight_decay=0.025,
        cautious_decay=True,
        other=optax.chain(
            optax.adam(other_rate, b1=0.8, b2=0.99, eps=1e-10),
            om.scale_by_path({"embed": 30.0, "lm_head": 0.3125}),
        ),
    )


def maxtext_muon(rate: Rate = 3e-5) -> Optimizer:
    """MaxText's `opt_type: muon` with its defaults, which are optax's Muon.

    Source: https://github.com/AI-Hypercomputer/maxtext, configs/base.yml and
    optimizers/optimizers.py (read).
    Numbers: momentum 0.95 with Nesterov, five steps, sqrt(max(1, m/n)), no weight decay
    of matrices; AdamW(0.9, 0.95) with Nesterov and weight decay 0.1 for the rest, at
    the same rate (`learning_rate`, 3e-5). Routers get Muon.
    Not reproduced: optax corrects the bias of the momentum before it looks ahead.
    Directions differ in the first steps and agree after about a hundred.
    Use: `tx = field_recipes.maxtext_muon(3e-4)`; without a router drop
    `dimension_numbers`.
    """
    return om.muon(
        rate,
        weight_decay=0.0,
        dimension_numbers=om.matrices.by_path(include="router|/gate/kernel"),
        other=optax.adamw(rate, b2=0.95, weight_decay=0.1, nesterov=True),
    )


def levanter_muon(rate: Rate, other_rate: Rate = 6e-4) -> Optimizer:
    """Levanter's `optimizer: {type: muon}` with its defaults.

    Source: https://github.com/marin-community/marin, levanter/optim/muon.py (read).
    Numbers: momentum 0.95 with Nesterov, five steps of the table `YOU` ("quintic"),
    sqrt(max(1, m/n)), no weight decay; Adam(0.9, 0.95) at 6e-4 for the rest, with
    gradients clipped to a norm of 1 over these leaves alone.
    Not reproduced: the schedule (cosine to a tenth, 1% warm-up). Levanter's Muon takes
    routers, too. Its field `lr: 0.02` is not read: the rate is `learning_rate`, 6e-4 if
    not set.
    Use: `tx = field_recipes.levanter_muon(0.02)`.
    """
    return om.muon(
        rate,
        polar=partial(om.linalg.newton_schulz, coefficients=om.linalg.YOU),
        other=optax.chain(
            optax.clip_by_global_norm(1.0), optax.adam(other_rate, b2=0.95)
        ),
    )
