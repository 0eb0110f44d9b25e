"""The second search: methods with additions, and its rounds."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from examples.study.bench.config import Result
from examples.study.bench.tasks import TASKS
from examples.study.equal import chains, gains, methods, search, space
from examples.study.equal.config import SEEDS, TUNING, Config
from examples.study.equal.protocol import Entry, due, left, tuned

PARAMS = {
    "attn": {"o": {"kernel": jnp.eye(8, 4)}},
    "mlp": {"up": {"kernel": jnp.full((4, 8), 0.5)}},
    "norm": {"scale": jnp.ones(4)},
}
STEPS = 10


def steps_of(tx, count):
    """The parameters after each of some steps with random gradients, and the state."""

    @jax.jit
    def run():
        state, params, found = tx.init(PARAMS), PARAMS, []
        for i in range(count):
            draw = lambda x, i=i: jax.random.normal(jax.random.key(x.size + i), x.shape)
            updates, state = tx.update(jax.tree.map(draw, params), state, params)
            params = optax.apply_updates(params, updates)
            found.append(params)
        return found, state

    return run()


def built(base, *additions):
    betas = {"b1": 0.9} | ({"b2": 0.95} if base in ("mousse", "soap") else {})
    rate = optax.constant_schedule(0.1)
    return chains.build(base, additions, rate, betas, 0.2, optax.sgd(0.1), None, STEPS)


@pytest.mark.broad
@pytest.mark.daily("muoneq")
@pytest.mark.parametrize("base", chains.BASES)
def test_without_additions_it_is_the_recipe(base):
    betas = {"b1": 0.9} | ({"b2": 0.95} if base in ("mousse", "soap") else {})
    recipe = getattr(om, base)(0.1, other=optax.sgd(0.1), weight_decay=0.2, **betas)
    theirs, _ = steps_of(recipe, 2)
    ours, _ = steps_of(built(base), 2)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("base", chains.BASES)
def test_every_addition_changes_the_weights_of_matrices(base):
    plain, _ = steps_of(built(base), 2)
    for name, one in chains.ADDITIONS.items():
        if base not in one.bases or one.is_averaged:
            continue
        changed, _ = steps_of(built(base, name), 2)
        old, new = plain[-1]["attn"]["o"]["kernel"], changed[-1]["attn"]["o"]["kernel"]
        assert np.isfinite(new).all(), name
        assert np.abs(old - new).max() > 1e-5, name
        np.testing.assert_array_equal(
            plain[-1]["norm"]["scale"], changed[-1]["norm"]["scale"]
        )


def test_centralized_gradients_have_no_mean_over_the_inputs():
    tx = chains.ADDITIONS["centralized"].around(optax.identity(), None)
    kernel = {"kernel": jnp.array([[1.0, 2.0, 3.0], [3.0, 6.0, 3.0]])}  # (in, out)
    got, _ = tx.update(kernel, tx.init(kernel), kernel)
    np.testing.assert_allclose(got["kernel"], [[-1, -2, 0], [1, 2, 0]])


def test_cautious_updates_have_the_gradients_sign():
    gradient = jnp.array([[1.0, -2.0], [3.0, 4.0]])
    turned = optax.stateless(lambda u, _: u * jnp.array([[1.0, -1.0], [1.0, 1.0]]))
    tx = chains.cautious(turned)
    got, _ = tx.update(gradient, tx.init(gradient))
    np.testing.assert_allclose(got, np.array([[1, 0], [3, 4]]) / 0.75)


@pytest.mark.parametrize(
    ("name", "factor"), [("kept", 1.0), ("growing", 2.0), ("shrinking", 0.5)]
)
def test_norms_follow_their_schedule(name, factor):
    norm = chains.ADDITIONS[name].norms
    assert norm(0) == 1
    assert norm(1) == factor
    w = jnp.arange(12.0).reshape(2, 2, 3) + 1
    tx = chains._with_norms(lambda count: norm(count / 2))
    state = tx.init(w)
    first = jnp.linalg.norm(w, axis=(-2, -1))
    for step in (1, 2):
        updates, state = tx.update(jnp.ones_like(w), state, w)
        before, w = w, w + updates
        np.testing.assert_allclose(
            jnp.linalg.norm(w, axis=(-2, -1)), first * norm(step / 2), rtol=1e-6
        )
        direction = (before + 1) / jnp.linalg.norm(before + 1, axis=(-2, -1))[
            :, None, None
        ]
        np.testing.assert_allclose(
            w / jnp.linalg.norm(w, axis=(-2, -1))[:, None, None], direction, rtol=1e-5
        )


@pytest.mark.broad
def test_rates_and_averages(monkeypatch):
    plain, _ = steps_of(built("muoneq"), 1)
    fast, _ = steps_of(built("muoneq", "attention_fast"), 1)
    for part, leaf, factor in (("attn", "o", 2), ("mlp", "up", 1)):
        start = PARAMS[part][leaf]["kernel"]
        old, new = (x[0][part][leaf]["kernel"] - start for x in (plain, fast))
        np.testing.assert_allclose(new, factor * old, rtol=1e-5)
    monkeypatch.setattr(chains, "WINDOW", 0.2)  # Two steps: a decay of a half.
    found, state = steps_of(built("muoneq", "averaged"), 3)
    average = methods.measured("muoneq+averaged", found[-1], state)
    kernels = [x["attn"]["o"]["kernel"] for x in found]
    wanted = (kernels[0] + 2 * kernels[1] + 4 * kernels[2]) / 7
    np.testing.assert_allclose(average["attn"]["o"]["kernel"], wanted, rtol=1e-5)
    assert methods.measured("muoneq", PARAMS, ()) is PARAMS


@pytest.mark.slow
def test_blocks_stand_before_or_behind_the_method():
    """Beside chains that are written out; the method is a momentum."""
    roots = om.precondition(
        decay=0.95, bias_correction=True, method="eigh", update_interval=10
    )
    momentum = om.momentum(0.9)
    for name, links in {
        "whitened": (roots, momentum),
        "normuon": (
            momentum,
            om.transforms.preserve_norm(om.equilibrate_with_ema(om.row_rms, 0.95)),
        ),
        "entries": (
            momentum,
            om.transforms.preserve_norm(om.scale_by_second_moment(0.95)),
        ),
        "polar": (
            momentum,
            om.transforms.preserve_norm(om.orthogonalize(chains.POLAR)),
        ),
    }.items():
        ours = chains.ADDITIONS[name].around(om.on_matrices(momentum), None)
        theirs = om.on_matrices(optax.chain(*links))
        for got, wanted in zip(
            steps_of(ours, 2)[0], steps_of(theirs, 2)[0], strict=True
        ):
            for key in ("attn", "mlp"):
                jax.tree.map(
                    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
                    got[key],
                    wanted[key],
                )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Check how these parameters")
def test_blocks_see_the_matrices_that_the_method_sees():
    """*digits* has fused kernels of three square matrices, and a rule that says so."""
    params, arena = TASKS["digits"].init(0), TASKS["digits"].arena
    config = dataclasses.asdict(
        space.candidates("muoneq", space.others("digits")[0])[0]
    )
    settings = {k: v for k, v in config.items() if isinstance(v, float)}

    def groups(name):
        tx = methods.optimizer(name, settings, arena, STEPS)
        paths = jax.tree_util.tree_leaves_with_path(jax.eval_shape(tx.init, params))
        keys = [getattr(key, "key", "") for path, _ in paths for key in path]
        return {key for key in keys if "@" in str(key)}

    names = "whitened", "centralized", "entries", "normuon", "kept"
    assert groups("muoneq")
    assert groups("+".join(("muoneq", *names))) == groups("muoneq")


def test_momentum_over_time_has_the_methods_in_its_middle():
    for name, first in (("rising", 2.0), ("falling", 0.5)):
        factor = chains.ADDITIONS[name].momentum
        assert (factor(0), factor(0.5), factor(1)) == (first, 1.0, 1 / first)


def test_additions_that_set_the_same_do_not_fit():
    assert chains.fit(["centralized", "rows", "rising", "kept", "attention_fast"])
    for pair in (
        ("rows", "rowcol"),
        ("rising", "falling"),
        ("kept", "growing"),
        ("attention_fast", "outputs_fast"),  # Attention's output is in both.
    ):
        assert not chains.fit(pair)


def test_a_name_has_its_additions_in_their_order():
    assert chains.name_of("soap", ("averaged", "cautious", "centralized")) == (
        "soap+centralized+cautious+averaged"
    )


def made(config: Config) -> Result:
    """Additions gain by their place, the first ones most."""
    base = space.base_of(config.method)
    middle = (space.METHODS | space.RANKED)[base].rates[config.task]
    loss = 1 + math.log2(config.rate / middle) ** 2 + config.seed / 1e4
    loss += math.log2(config.other_rate / space.OTHER) ** 2 + (config.b1 - 0.9) ** 2
    for name in config.method.split("+")[1:]:
        loss += 1e-3 * (list(chains.ADDITIONS).index(name) - 6)
    curve = [[0, 9.0], [config.steps, loss]]
    return Result(loss, curve, 1.0, 2048, 1.0)


def test_rounds_follow_each_other():
    found: dict[Config, Result] = {}
    singles = search.first_round()
    assert len(singles) == sum(len(one.bases) for one in chains.ADDITIONS.values())
    while missing := [e for e in search.entries(found) if due(e, found)]:
        planned = left(missing, found)
        before = len(found)
        for entry in missing:
            while config := due(entry, found):
                found[config] = made(config)
        assert len(found) - before >= planned
    assert gains.gain("soap+polar", "soap", found) == pytest.approx(-1e-3, abs=1e-6)
    second = search.second_round(found)
    # Gains: rows -6, rowcol -5, mode_rowcol -4, whitened -3, centralized -2, polar -1.
    assert list(second) == [
        "muoneq+mode_rowcol+whitened",
        "muoneq+mode_rowcol+centralized",
        "muoneq+whitened+centralized",
        "muoneq+mode_rowcol+whitened+centralized",
        "mousse+rows+centralized",  # `rowcol` is better, and does not fit.
        "soap+centralized+polar",
        "aurora+whitened+centralized",
    ]
    best = search.finalists(found)
    assert best[0] == "muoneq+mode_rowcol+whitened+centralized"
    assert len(best) == search.CHOSEN
    mine = [c for c in found if c.method == best[0]]
    assert {c.task for c in mine} == {"books", "digits"}
    assert {c.seed for c in mine} == {*TUNING, *SEEDS}
    beaten = [c for c in found if c.method == "soap+polar"]
    assert {c.seed for c in beaten} == {*TUNING}
    text = search.report(found)
    line = next(
        x for x in text.splitlines() if x.startswith(f"| `{best[0]}` | -0.0090 ± ")
    )
    assert line.split("|")[4].strip() == "-0.0090 ± 0.0000"  # On digits.
    assert tuned(Entry("books", best[0]), found).method == best[0]


def test_an_empty_report_has_its_additions():
    text = search.report({})
    assert text.count("\n") == len(chains.ADDITIONS) + 1
    assert "| whitened |  | - | - |  |" in text
    assert "| rows | - |  | - | - |" in text
