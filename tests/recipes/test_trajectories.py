"""Twenty steps of every recipe against its NumPy float64 restatement."""

from functools import partial

import _recipe_problem as problem
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _reference import optimizers
from _registry import LOW_RANK, ROTATED, TABLE

from optax_matrix import recipes

LR = 0.05

# recipe, its arguments, the restatement, and beta2, decay, rate of the other side
CASES = {
    "muon": ("muon", {}, optimizers.muon, (0.95, 0.0, 0.015 * LR)),
    "muoneq": ("muoneq", {}, optimizers.muoneq, (0.95, 0.1, LR)),
    "muon_plus": ("muon_plus", {}, optimizers.muon_plus, (0.95, 0.1, LR)),
    "muon2": ("muon2", {}, optimizers.muon2, (0.95, 0.1, LR)),
    "aurora": ("aurora", {}, optimizers.aurora, (0.95, 0.025, LR)),
    "dion2": ("dion2", {}, optimizers.dion2, (0.95, 0.01, LR)),
    "adamuon": ("adamuon", {}, optimizers.adamuon_sign, (0.95, 0.1, LR)),
    "normuon": ("normuon", {}, optimizers.normuon, (0.95, 0.1, LR)),
    "swan": ("swan", {}, optimizers.swan, (0.999, 0.0, LR)),
    "sinkgd": ("sinkgd", {}, optimizers.sinkgd, (0.95, 0.1, LR)),
    "racs": ("racs", {}, optimizers.racs, (0.999, 0.0, 0.05 * LR)),
    "mars_adamw": ("mars_adamw", {}, optimizers.mars_adamw, (0.95, 0.1, LR)),
    "muonh": ("muonh", {}, optimizers.muonh, (0.95, 0.0, 3 / 13 * LR)),
}
VARIANTS = {
    "muon_moonlight": (
        "muon",
        {"scaling": "max", "nesterov": False},
        partial(optimizers.muon, scaling="max", nesterov=False, weight_decay=0.1),
        (0.95, 0.1, LR),
    ),
    "muon_moonlight_nesterov": (
        "muon",
        {"scaling": "max"},
        partial(optimizers.muon, scaling="max", nesterov=True, weight_decay=0.1),
        (0.95, 0.1, LR),
    ),
    "muoneq_col": (
        "muoneq",
        {"mode": "col", "b1": 0.9},
        partial(optimizers.muoneq, mode="col", b1=0.9),
        (0.95, 0.1, LR),
    ),
    "muoneq_rowcol": (
        "muoneq",
        {"mode": "rowcol", "nesterov": False, "weight_decay": 0.0},
        partial(optimizers.muoneq, mode="rowcol", nesterov=False, weight_decay=0.0),
        (0.95, 0.0, LR),
    ),
    "muon_plus_row": (
        "muon_plus",
        {"mode": "row"},
        partial(optimizers.muon_plus, mode="row"),
        (0.95, 0.1, LR),
    ),
    "dion2_half": (
        "dion2",
        {"fraction": 0.5, "b1": 0.8},
        partial(optimizers.dion2, fraction=0.5, b1=0.8),
        (0.95, 0.01, LR),
    ),
    "aurora_rounds": (
        "aurora",
        {"rounds": 4, "power": 0.25, "nesterov": False},
        partial(optimizers.aurora, rounds=4, power=0.25, nesterov=False),
        (0.95, 0.025, LR),
    ),
    "adamuon_unsigned": (
        "adamuon",
        {"variant": "unsigned"},
        optimizers.adamuon_unsigned,
        (0.95, 0.1, LR),
    ),
    "muonh_plain": (
        "muonh",
        {"nesterov": False, "b1": 0.8, "weight_decay": 0.1},
        partial(optimizers.muonh, nesterov=False, b1=0.8),
        (0.95, 0.1, 3 / 13 * LR),
    ),
    "normuon_out_in": (
        "normuon",
        {"scaling": "out/in", "b2": 0.8},
        partial(optimizers.normuon, scaling="out/in", b2=0.8),
        (0.95, 0.1, LR),
    ),
    "racs_corrected": (
        "racs",
        {"bias_correction": True, "limiter": 1.2, "rounds": 3, "scale": 0.1},
        partial(
            optimizers.racs, bias_correction=True, limiter=1.2, rounds=3, scale=0.1
        ),
        (0.999, 0.0, 0.05 * LR),
    ),
    "racs_literal": (
        "racs",
        {"max_rms": None, "max_shrink": None},
        partial(optimizers.racs, max_rms=np.inf, max_shrink=np.inf),
        (0.999, 0.0, 0.05 * LR),
    ),
    "swan_norm": (
        "swan",
        {"scaling": "norm"},
        partial(optimizers.swan, scaling="norm"),
        (0.999, 0.0, LR),
    ),
    "swan_unscaled": (
        "swan",
        {"scaling": "none"},
        partial(optimizers.swan, scaling="none"),
        (0.999, 0.0, LR),
    ),
    "mars_adamw_of_muoneq": (
        "mars_adamw",
        {"b1": 0.9, "b2": 0.95},
        partial(optimizers.mars_adamw, b1=0.9, b2=0.95),
        (0.95, 0.1, LR),
    ),
    "mars_adamw_unclipped": (
        "mars_adamw",
        {"max_norm": None, "gamma": 0.1, "b1": 0.9, "b2": 0.95},
        partial(optimizers.mars_adamw, max_norm=np.inf, gamma=0.1, b1=0.9, b2=0.95),
        (0.95, 0.1, LR),
    ),
    "mars_amsgrad": (
        "mars_adamw",
        {"amsgrad": True, "b2": 0.5},
        partial(optimizers.mars_adamw, amsgrad=True, b2=0.5),
        (0.95, 0.1, LR),
    ),
}


def assert_follows(case):
    name, arguments, step, (b2, weight_decay, other_lr) = case
    tx = getattr(recipes, name)(
        LR, dimension_numbers=problem.DIMENSION_NUMBERS, **arguments
    )
    start, noise = problem.params(), problem.noise()
    path, state = problem.run_jax(tx, start, noise)
    adam = partial(optimizers.adamw, lr=other_lr, b2=b2, weight_decay=0.0)
    adamw = partial(adam, weight_decay=weight_decay)
    expected = problem.run_numpy(partial(step, lr=LR), adamw, start, noise, adam)

    groups = state.manifest
    assert sum(len(ids) for ids in groups.values()) == 6  # 3 kernels and 3 layers
    for leaf, values in expected.items():
        assert path[leaf].dtype == np.float64
        # Twenty float64 steps; the slope of NS5 at zero, 485, amplifies rounding.
        np.testing.assert_allclose(path[leaf], values, rtol=0, atol=1e-10, err_msg=leaf)


@pytest.mark.quick("muon", "swan", "mars_adamw")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_recipe_follows_its_restatement(name):
    assert_follows(CASES[name])


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_follows_its_restatement(name):
    assert_follows(VARIANTS[name])


def test_every_recipe_has_a_case():
    # POET's own test is of its block; Scion has no AdamW.
    elsewhere = ROTATED | LOW_RANK | {"poet", "oft", "scion"}
    assert {case[0] for case in CASES.values()} | elsewhere == {*TABLE}


@pytest.mark.usefixtures("x64")
def test_other_replaces_adamw_and_schedules_are_followed():
    tx = recipes.swan(
        lambda count: jnp.where(count < 10, 0.125, 0.25),
        other=optax.sgd(0.5),
        dimension_numbers=problem.DIMENSION_NUMBERS,
    )
    start, noise = problem.params(), problem.noise()
    path, _ = problem.run_jax(tx, start, noise)

    def sgd(w, g, state):
        del state
        return w - 0.5 * g

    def scheduled(w, g, state):
        t = state["t"] = state.get("t", -1) + 1
        return optimizers.swan(w, g, {}, 0.125 if t < 10 else 0.25)

    expected = problem.run_numpy(scheduled, sgd, start, noise)
    gap = jax.tree.map(lambda a, b: np.abs(a - b).max(), path, expected)
    assert max(gap.values()) < 1e-10
