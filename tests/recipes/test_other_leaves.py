"""What `init` of a recipe says where the other leaves would not train as meant."""

import warnings

import jax
import numpy as np
import optax
import pytest
from _raised import raise_warnings

import optax_matrix as om

BOTH = {"kernel": np.eye(4, 8, dtype=np.float32), "bias": np.ones(8, np.float32)}
COSINE = optax.cosine_decay_schedule(0.01, 100)
WARMUP = optax.linear_schedule(0.0, 0.01, 10)


def said(tx, params=BOTH):
    """The warnings of `init`, the same under a trace."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        tx.init(params)
    with warnings.catch_warnings(record=True) as traced:
        warnings.simplefilter("always")
        jax.eval_shape(tx.init, params)
    texts = [[str(w.message) for w in caught] for caught in (found, traced)]
    assert texts[0] == texts[1]
    return texts[0]


NORM = {"scale": np.ones(8, np.float32), "bias": np.ones(8, np.float32)}
AVERAGES = {"mean": np.ones(8, np.float32), "var": np.ones(8, np.float32)}


@pytest.mark.parametrize(
    ("tree", "first"),
    [
        (
            {"params": {**BOTH, "norm": NORM}, "batch_stats": {"norm": AVERAGES}},
            "batch",
        ),
        ({**BOTH, "norm": NORM | AVERAGES}, "norm/mean, norm/var"),
    ],
    ids=["Linen", "NNX"],
)
@pytest.mark.filterwarnings("ignore:Parameters read from names")
@pytest.mark.broad
def test_running_statistics_are_no_parameters(tree, first):
    for group in om.recipes.METHODS.values():
        for recipe in group:
            with pytest.warns(UserWarning, match=f"but {first}.*nnx.Param"):
                jax.eval_shape(recipe(0.01).init, tree)


def test_a_mean_and_a_variance_that_are_learned_pass():
    assert said(om.muoneq(0.01), {**BOTH, "latent": AVERAGES}) == []
    assert said(om.muoneq(0.01), {**BOTH, "norm": NORM}) == []


DESCENTS = {
    "adam": lambda: optax.adam(0.01),
    "warmup": lambda: optax.adamw(WARMUP),
    "lion": lambda: optax.lion(0.01),
    "adafactor": lambda: optax.adafactor(0.01),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(0.01),
    "frozen": optax.set_to_zero,
    "eight bits": lambda: om.adamw_8bit(0.01),
    "masks": lambda: optax.adamw(0.01, mask={"kernel": None, "bias": False}),
}


@pytest.mark.parametrize("name", DESCENTS)
def test_optimizers_pass(name):
    assert said(om.racs(0.01, other=DESCENTS[name]())) == []


def test_a_masked_direction_is_no_optimizer():
    masked = optax.masked(optax.scale_by_adam(), {"kernel": None, "bias": True})
    assert len(said(om.racs(0.01, other=masked))) == 1


def test_traced_rates_say_nothing():
    init = lambda rate: om.racs(COSINE, other_learning_rate=rate).init(BOTH)
    jax.eval_shape(init, 0.01)
    assert said(om.inject_hyperparams(om.racs)(COSINE, other_learning_rate=0.01)) == []


@pytest.mark.parametrize("recipe", [om.muoneq, om.poet, om.scion, om.muonh])
def test_directions_are_no_optimizer(recipe):
    (text,) = said(recipe(0.01, other=optax.scale_by_adam()))
    assert "points along the gradient" in text
    assert "optax.scale_by_learning_rate" in text


def test_a_short_step_may_be_an_ascent_too():
    (text,) = said(om.muoneq(0.01, other=optax.scale(1e-6)))
    assert "points along the gradient" in text


def test_without_other_leaves_there_is_nothing_to_say():
    tx = om.racs(COSINE, other_learning_rate=0.01)
    assert said(tx, {"kernel": BOTH["kernel"]}) == []


def test_a_chain_of_directions_is_right_in_on_matrices():
    assert said(om.on_matrices(om.momentum(0.9), other=optax.scale_by_adam())) == []


@pytest.mark.parametrize("recipe", [om.muoneq, om.poet, om.muonh])
def test_half_a_schedule(recipe):
    (text,) = said(recipe(COSINE, other_learning_rate=0.01))
    assert "`learning_rate` is a schedule, but `other_learning_rate` is" in text
    (text,) = said(recipe(0.01, other_learning_rate=COSINE))
    assert "`other_learning_rate` is a schedule, but `learning_rate` is" in text


@pytest.mark.parametrize("given", [None, 0.0, COSINE, optax.constant_schedule(0.01)])
def test_other_rates_beside_a_schedule_pass(given):
    assert said(om.racs(COSINE, other_learning_rate=given)) == []


def test_a_warning_that_is_an_error_keeps_its_words():
    with warnings.catch_warnings():
        raise_warnings()
        with pytest.raises(UserWarning, match=r"^`other` must return finished"):
            om.racs(0.01, other=optax.scale_by_adam()).init(BOTH)
