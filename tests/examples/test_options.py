"""Options in the names of methods: every keyword of every recipe."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from _walks import walk

import optax_matrix as om
from examples.pretrain.cli import main as train
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import OPTIMIZERS, find
from examples.pretrain.options import FIXED, KERNELS
from examples.study.compare.cli import main as compare

RECIPES = [n for n in om.recipes.__all__ if hasattr(om, f"scale_by_{n}")]
RECIPES += ["poet", "oft", "muonh"]

# A value that is not the default, by keyword or recipe and keyword; flags are flipped.
VALUES = {
    "b1": "0.5",
    "b2": "0.25",
    "b3": "0.5",
    "base": "adam",
    "basis": "svd",
    "block": "16",
    "block_size": "8",
    "bound_decay": "0.5",
    "compensation": "None",
    "damping": "0.5",
    "eps": "0.1",
    "factor_rate": "0.5",
    "first": "embed",
    "first_norm": "column",
    "first_radius": "2",
    "fraction": "0.5",
    "gamma": "0.05",
    "hold": "recovered",
    "init_scale": "0.5",
    "last": "lm_head",
    "last_layer": "method",
    "last_norm": "row",
    "last_radius": "2",
    "leading": "2",
    "limiter": "1.5",
    "max_batch": "1",
    "max_dim": "8",
    "max_entry": "5",
    "max_norm": "0.5",
    "max_rms": "3",
    "max_shrink": "None",
    "max_skew": "2",
    "merge_at": "0.25",
    "merge_interval": "7",
    "method": "eigh",
    "mode": "col",
    "nonfinite": "skip",
    "norm": "tensor",
    "orientation": "out",
    "orthogonal": "cayley",
    "polar": "polar_svd",
    "policy": "eigen_exact",
    "power": "0.25",
    "precision": "exact",
    "q_decay": "0.5",
    "qr": "qr_householder",
    "radius": "2",
    "rank": "3",
    "renew_below": "0.1",
    "reset": "none",
    "residual_scale": "0.7",
    "rho": "0.5",
    "heads": "split",
    "root": "2",
    "rounds": "2",
    "sampling": "subspace",
    "scale": "0.5",
    "scaling": "out/in",
    "scheme": "simultaneous",
    "seed": "1",
    "sharing": "chain",
    "side": "out",
    "sides": "in",
    "start": "exact",
    "statistics": "kl",
    "switch": "none",
    "terms": "2",
    "transport": "carry",
    "update_interval": "3",
    "variant": "full:block=0.5",
    "zero_gradient": "follow",
    "adamuon:variant": "unsigned",
    "aurora:rounds": "3",
    "aurora:scaling": "max",
    "apollo:transport": "carry:basis=svd",
    "fira:compensation": "fira_plus",
    "kron:statistics": "momentum",
    "scion:norm": "row",
    "oft:orthogonal": "exponential",
    "shampoo:bias_correction": "True:b2=0.9",
    "soap_muon:scaling": "max",
    "sumo:max_shrink": "3",
    "sumo:scaling": "none",
    "sumo:transport": "keep",
}


def keywords(recipe):
    """The keywords of a recipe that a name may set, with the recipe's defaults."""
    _, *rest = inspect.signature(getattr(om, recipe)).parameters.values()
    return {x.name: x.default for x in rest if x.name not in FIXED}


# Besides their default, these take functions of the user's only.
ONLY_FUNCTIONS = {("apollo", "basis")}
# AdamW trains the other leaves under every method.
OF_OTHERS = {
    ("scion", f"{k}_{x}") for k in ("first", "last") for x in ("norm", "radius")
}
EVERY = [(recipe, key) for recipe in RECIPES for key in keywords(recipe)]
EVERY = [pair for pair in EVERY if pair not in ONLY_FUNCTIONS | OF_OTHERS]


def test_coefficients_are_given_by_the_name_of_their_table():
    name = "muon:polar=newton_schulz(coefficients=YOU, steps=4)"
    kernel = find(name).options["polar"]
    assert kernel.keywords == {"coefficients": om.linalg.YOU, "steps": 4}


def test_every_recipe_is_there():
    assert set(RECIPES) == set(OPTIMIZERS) - {"adamw", "lora"}


def other_value(recipe, key):
    """A value that is not the default, as text; None where the table has none."""
    default = keywords(recipe)[key]
    other = str(not default) if isinstance(default, bool) else VALUES.get(key)
    return VALUES.get(f"{recipe}:{key}", other)


def test_every_keyword_has_another_value():
    lacking = sorted({key for recipe, key in EVERY if other_value(recipe, key) is None})
    assert not lacking, f"add values that are not the defaults to `VALUES`: {lacking}"


@pytest.mark.broad
@walk(("recipe", "key"), [x for x in EVERY if other_value(*x) is not None])
def test_every_keyword_can_be_set(recipe, key):
    default = find(recipe).options[key]
    value = other_value(recipe, key)
    assert find(f"{recipe}:{key}={value}").options[key] != default


@pytest.mark.broad
@walk("recipe", RECIPES)
def test_functions_are_given_by_their_names(recipe):
    for key, default in keywords(recipe).items():
        if callable(default):
            assert default.__name__ in KERNELS[key]
        for kernel in KERNELS.get(key, ()):
            method = find(f"{recipe}:{key}={kernel}")
            assert method.options[key] is getattr(om.linalg, kernel)


def _program(name):
    """The text of the compiled update of a small model."""
    shapes = {"q/kernel": (8, 6), "lm_head/kernel": (6, 9), "norm/scale": (8,)}
    params = {p: jax.ShapeDtypeStruct(s, jnp.float32) for p, s in shapes.items()}
    tx = find(name)(1e-3)
    state = jax.eval_shape(tx.init, params)
    return jax.jit(tx.update).lower(params, state, params).as_text()


@pytest.mark.parametrize(
    "name",
    [
        "muoneq:mode=col",
        "muon:nesterov=False",
        "muon:polar=polar_svd",
        "muon:polar=newton_schulz(steps=3)",
        "muon_plus:nesterov=False",
        "sumo:polar=newton_schulz",
        "racs:b1=0",
        "racs:bias_correction=True",
        "mars_adamw:gamma=0.05",
        "mars_adamw:max_norm=inf",
        "aro:qr=qr_householder",
        "alice:compensation=None",
        "galore:side=long",
        "galore:last_layer=method",
        "apollo_mini:side=long",
        "ldadam:error_feedback=False",
        "poet:terms=2",
        "poet:b1=0.5",
        "oft:orthogonal=cayley_taylor",
    ],
)
@pytest.mark.slow
def test_options_change_the_update(name):
    assert _program(name) != _program(name.split(":")[0])


def test_the_last_layer_may_belong_to_a_method_whose_size_is_matched():
    params = {"lm_head": {"kernel": jnp.full((4, 8), 2.0)}}
    shapes = lambda name: [
        x.shape for x in jax.tree.leaves(jax.eval_shape(find(name)(0.1).init, params))
    ]
    assert shapes("galore").count((4, 8)) == 2  # AdamW's moments.
    assert (4, 8) not in shapes("galore:last_layer=method")


@walk("key", FIXED)
def test_what_the_comparison_fixes_is_refused(key):
    for recipe in RECIPES:
        with pytest.raises(UserError, match=f"`{key}` is the same for every method"):
            find(f"{recipe}:{key}=1")


@walk("recipe", RECIPES)
def test_an_unknown_keyword_lists_those_that_exist(recipe):
    with pytest.raises(UserError, match=f"{recipe} has no option 'bb'; ") as error:
        find(f"{recipe}:bb=1")
    listed = str(error.value).partition("its options: ")[2].rstrip(".").split(", ")
    assert {x for x in keywords(recipe) if (recipe, x) not in OF_OTHERS} <= set(listed)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sgdd", "There is no optimizer 'sgdd'; choose from adamw, muon"),
        ("sgdd:b1=0.5", "There is no optimizer 'sgdd'; choose from adamw, muon"),
        ("adamw:b1=0.5", "adamw has no option 'b1'; its options: none"),
        ("muon:polar=svd", "`polar` must be one of newton_schulz, .*, got 'svd'"),
        ("muon:polar=sinkhorn", "`polar` must be one of newton_schulz, "),
        ("muon:polar=newton_schulz(3)", "keywords with Python literals or .*\\(3\\)"),
        ("muon:polar=newton_schulz(steps=", "keywords with Python literals"),
        ("muon:polar=newton_schulz(stepz=3)", "stepz"),
        ("muon:nesterov", "give `nesterov` a value: muon:nesterov=True"),
        ("muon:nesterov=", "muon:nesterov=: "),
        ("muon:b1=2", "muon:b1=2: .*`b1`"),
        ("muon:nesterov=no", "`nesterov`"),
        ("muon:b1=0.5:b1=0.6", "muon: `b1` is given twice"),
        ("muoneq:mode=diagonal", "`mode` must be one of"),
        ("racs:rounds=0", "`rounds`"),
        ("racs:beta_1=0", "racs has no option 'beta_1'; its options: "),
        ("poet:block=0", "`block` must be"),
        ("poet:block=wide", "`block` must be"),
        ("poet:share=much", "`share` must be from 0 to 1"),
        ("muoneq:nonfinite=raise", "use nonfinite=skip"),
        ("oft:share=1", "oft has no option 'share'"),
    ],
)
def test_mistakes_are_answered(name, message):
    with pytest.raises(UserError, match=message):
        find(name)


@pytest.mark.parametrize(
    ("main", "flag"), [(train, "--optimizer"), (compare, "--optimizers")]
)
def test_help_lists_every_method_and_its_options(capsys, tmp_path, main, flag):
    assert main([flag, "help", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "muon: b1=0.95, nesterov=True, polar=newton_schulz, scaling=max" in printed
    for recipe in RECIPES:
        assert f"\n{recipe}: " in printed
    assert "polar: newton_schulz, " in printed
    assert not (tmp_path / "run").exists()
