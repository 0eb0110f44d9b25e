"""What to write in place of a keyword that a function does not have.

The words are those of `optax.contrib.muon` and of the authors' programs of Muon, SOAP
and GaLore; other words are compared with the names of the arguments.
"""

import difflib
from collections.abc import Collection

# The argument of the same meaning.
_RENAMED = {
    "lr": "learning_rate",
    "beta": "b1",
    "beta1": "b1",
    "beta2": "b2",
    "muon_beta": "b1",
    "momentum": "b1",
    "shampoo_beta": "b3",
    "wd": "weight_decay",
    "mask": "weight_decay_mask",
    "adam_learning_rate": "other_learning_rate",
    "adam_lr": "other_learning_rate",
    "adam_weight_decay": "other_weight_decay",
    "adamw_lr": "other_learning_rate",
    "muon_weight_dimension_numbers": "dimension_numbers",
    "weight_dimension_numbers": "dimension_numbers",
    "precondition_frequency": "update_interval",
    "update_proj_gap": "update_interval",
    "max_precond_dim": "max_dim",
    "max_size_triangular": "max_dim",
    "max_skew_triangular": "max_skew",
    "preconditioner_init_scale": "init_scale",
    "preconditioner_lr": "factor_rate",
    "preconditioner_update_probability": "update_interval",
    "correct_bias": "bias_correction",
    "proj_type": "side",
}
_KERNEL = "write polar=functools.partial(om.linalg.newton_schulz, {})."
_COEFFICIENTS = "polar", _KERNEL.format("coefficients=((3.4445, -4.775, 2.0315),)")
_OTHER = "write other=optax.adamw(rate, {}), the optimizer of all other leaves."
_PARAMS = "give the parameters to `init`: f(learning_rate).init(params)."
_CLIP = "leave it out; write optax.chain(optax.clip_by_global_norm(1.0), ...)."
# What to write, if the function has an argument: {word: (argument, sentence)}.
_INSTEAD = {
    "betas": ("b1", "write b1=0.9, b2=0.95; a method without `b2` has one momentum."),
    "ns_steps": ("polar", _KERNEL.format("steps=5")),
    "ns_coeffs": _COEFFICIENTS,
    "ns_coefficients": _COEFFICIENTS,
    "eps": ("polar", _KERNEL.format("eps=1e-7")),
    "epsilon": ("polar", _KERNEL.format("eps=1e-7")),
    "backend_steps": ("polar", _KERNEL.format("steps=5")),
    "preconditioning": (
        "polar",
        "leave it out for 'frobenius'; for 'aol' "
        + _KERNEL.format("preconditioning='aol'"),
    ),
    "consistent_rms": ("scaling", "write scaling='max' for consistent_rms=0.2."),
    "target": ("scaling", "write scaling=om.target_rms(0.2) for target=0.2."),
    "adjust_lr_fn": (
        "scaling",
        "write scaling='out/in' for 'original', scaling='max' for 'match_rms_adamw'.",
    ),
    "use_kimi_scaling": ("scaling", "write scaling='max' for use_kimi_scaling=True."),
    "muon_consistent_rms": ("scaling", "write scaling='max' for 0.2."),
    "adaptive": ("polar", "leave it out; om.adamuon has second moments."),
    "adam_b1": ("other", _OTHER.format("b1=0.9")),
    "adam_b2": ("other", _OTHER.format("b2=0.999")),
    "adam_eps_root": ("other", _OTHER.format("eps_root=0.0")),
    "eps_root": ("other", _OTHER.format("eps_root=0.0")),
    "adamw_betas": ("other", _OTHER.format("b1=0.9, b2=0.95")),
    "adamw_eps": ("other", _OTHER.format("eps=1e-8")),
    "adam_eps": ("other", _OTHER.format("eps=1e-8")),
    "params": ("learning_rate", _PARAMS),
    "muon_params": ("learning_rate", _PARAMS),
    "adamw_params": ("learning_rate", _PARAMS),
    "world_size": ("placement", "write placement=om.owners(mesh_axes)."),
    "merge_dims": ("dimension_numbers", "leave it out; `dimension_numbers` merges."),
    "precondition_1d": ("other", "leave it out; vectors go to the optimizer `other`."),
    "normalize_grads": ("dimension_numbers", _CLIP),
    "max_grad_norm": ("dimension_numbers", _CLIP),
    "data_format": ("dimension_numbers", "leave it out; kernels are those of Flax."),
    "no_deprecation_warning": ("dimension_numbers", "leave it out."),
}


def hint(
    function: str, given: Collection[str], known: Collection[str], positional: int = 0
) -> str:
    """What to write instead of the first unknown keyword, or all the arguments."""
    unknown = sorted(set(given) - set(known))
    if positional > 1 and "learning_rate" in known:
        return f"all but the learning rate are keywords, as in b1=0.9; {_PARAMS}"
    if positional > 1 and "build" in known:
        return (
            "blocks are one chain, as in on_matrices(optax.chain(a, b)), and the "
            "optimizer of the leaves that are not matrices is `other`."
        )
    if "learning_rate" in unknown or (function.startswith("scale_by_") and not unknown):
        return (
            "it has no learning rate: write optax.chain("
            f"om.{function}(), optax.scale_by_learning_rate(rate))."
        )
    listed = f"its arguments are {', '.join(known)}."
    for name in unknown:
        if _RENAMED.get(name) in known:
            return f"here `{name}` is called `{_RENAMED[name]}`."
        argument, sentence = _INSTEAD.get(name, ("", ""))
        if argument in known:
            return sentence
        if close := difflib.get_close_matches(name, known, n=1):
            return f"did you mean `{close[0]}`?"
    if words := [name for name in unknown if name in {*_RENAMED, *_INSTEAD}]:
        return f"it has nothing like `{words[0]}`; {listed}"
    return listed
