"""Updates, accumulation, sweeps with one compilation, and metrics."""

import dataclasses
import functools
import json

import jax
import numpy as np
import optax
import pytest

from examples.pretrain import compare, step
from examples.pretrain.config import SIZES
from examples.pretrain.errors import UserError
from examples.pretrain.metrics import Metrics, read
from examples.pretrain.optimizers import OPTIMIZERS, Arena
from examples.pretrain.protocol import Curve
from examples.pretrain.texts import from_texts
from examples.pretrain.windows import Windows

MODEL = dataclasses.replace(
    SIZES["tiny"], embed=16, mlp=24, heads=2, kv_heads=1, layers=1, context=8
)
TEXT = bytes(range(97, 123)) * 80
PEAK = np.float32(1e-2)


def run(trainer, data, steps, seed=0):
    state, batches, losses = trainer.init(seed), iter(data.train), []
    for _ in range(steps):
        state, loss = trainer.update(state, next(batches), PEAK)
        losses.append(float(loss))
    return state, losses


def test_schedule_warms_up_and_ends_at_a_tenth():
    schedule = step.learning_rate(3.0, 100)
    assert float(schedule(0)) == 0.0
    assert float(schedule(5)) == pytest.approx(1.5)
    assert float(schedule(10)) == pytest.approx(3.0)
    assert float(schedule(55)) == pytest.approx(0.55 * 3.0, rel=1e-5)
    assert float(schedule(100)) == pytest.approx(0.3)


@pytest.mark.broad
def test_loss_falls_and_is_the_mean_cross_entropy():
    data = from_texts([TEXT], Windows(context=8, batch=8))
    state, losses = run(step.Trainer(MODEL, Arena().adamw, 30, 1), data, 30)
    assert losses[0] == pytest.approx(np.log(256), abs=0.1)
    assert losses[-1] < 0.8 * losses[0]
    held_out = step.evaluate(MODEL, state.params, data.validation)
    singles = [
        float(step.loss_and_gradient(MODEL, state.params, rows)[0])
        for rows in data.validation
    ]
    assert held_out == pytest.approx(np.mean(singles), rel=1e-5)


@pytest.mark.broad
def test_accumulated_micro_batches_equal_one_batch():
    build = lambda lr: optax.sgd(lambda count: 100 * lr(count), momentum=0.9)
    states = []
    for count in (1, 4):
        data = from_texts([TEXT], Windows(context=8, batch=8, accumulate=count))
        states.append(run(step.Trainer(MODEL, build, 5, count), data, 5)[0])
    whole, parts = (jax.tree.leaves(state.params) for state in states)
    start = jax.tree.leaves(step.initial_weights(MODEL, 0))
    for a, b, c in zip(whole, parts, start, strict=True):
        moved = float(np.abs(a - c).max())
        assert moved > 1e-4
        # Five updates of sums in another order, against how far they moved.
        np.testing.assert_allclose(a, b, atol=1e-3 * moved)


def test_state_bytes_count_every_array():
    params = step.initial_weights(MODEL, 0)
    state = optax.scale_by_adam().init(params)
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert step.state_bytes(state) == 8 * weights + 4
    assert step.state_bytes(jax.eval_shape(lambda: state)) == 8 * weights + 4


PLAN = compare.Comparison(
    model=MODEL,
    optimizers=("muoneq",),
    learning_rates=(1e-2, 1e30, 3e-3),
    sweep="adamw",
    steps=6,
    batch=4,
    accumulate=1,
    data="-",
    tokenizer=None,
    seeds=2,
    eval_every=2,
    validation=128,
    checksum="-",
)


@pytest.fixture(scope="module")
def compared():
    compiled = step.Trainer._apply._cache_size()
    curves = compare.compare(
        PLAN, lambda seed: from_texts([TEXT], Windows(context=8, batch=4, seed=seed))
    )
    return curves, step.Trainer._apply._cache_size() - compiled


@pytest.mark.broad
def test_comparison_runs_every_rate_and_seed_with_one_compilation_each(compared):
    curves, compiled = compared
    assert compiled == 2  # adamw and muoneq, whatever the rates and seeds
    got = [(c.optimizer, c.learning_rate, c.seed) for c in curves]
    rates = (1e-2, 1e30, 3e-3)
    assert got[:6] == [("adamw", rate, seed) for rate in rates for seed in (0, 1)]
    best = got[6][1]
    assert best in (1e-2, 3e-3)
    assert got[6:] == [("muoneq", best, 0), ("muoneq", best, 1)]


def test_only_adamws_runs_choose_the_rate_of_the_others(monkeypatch):
    """A method that is bad at this rate must not send the next one to another."""
    losses = {"adamw": {1e-2: 2.0, 3e-3: 3.0}, "bad": {1e-2: 9.0}, "own": {7e-3: 1.0}}

    def sweep(_plan, name, rates, _data, _progress):
        loss = losses.get(name, {})
        return [Curve(name, r, 0, (6,), (loss.get(r, 1.0),), 1.0, 0) for r in rates]

    monkeypatch.setattr(compare, "_sweep", sweep)
    plan = dataclasses.replace(
        PLAN,
        optimizers=("adamw", "bad", "own", "last"),
        learning_rates=(1e-2, 3e-3),
        seeds=0,
        own_rates={"own": 7e-3},
    )
    got = [
        (c.optimizer, c.learning_rate) for c in compare.compare(plan, lambda _: None)
    ]
    assert got[2:] == [("bad", 1e-2), ("own", 7e-3), ("last", 1e-2)]


@pytest.mark.broad
def test_comparison_ends_a_diverged_run_early(compared):
    diverged = [c for c in compared[0] if c.learning_rate == 1e30]
    assert all(c.final == np.inf and np.isnan(c.losses[-1]) for c in diverged)


@pytest.mark.broad
def test_comparison_curves_are_those_of_single_runs(compared):
    last = compared[0][-1]
    data = from_texts([TEXT], Windows(context=8, batch=4, seed=1))
    trainer = step.Trainer(MODEL, OPTIMIZERS["muoneq"], 6, 1)
    state, batches = trainer.init(1), iter(data.train)
    for _ in range(6):
        state, _ = trainer.update(state, next(batches), np.float32(last.learning_rate))
    assert step.evaluate(MODEL, state.params, data.validation) == last.losses[-1]
    assert last.state_bytes == step.state_bytes(state.opt_state)
    assert last.steps == (2, 4, 6)


@pytest.fixture(scope="module")
def after_two_updates():
    """The weights after two updates, the first of them at a rate of zero."""
    data = from_texts([TEXT], Windows(context=8, batch=8))

    @functools.cache
    def weights(name):
        trainer = step.Trainer(MODEL, OPTIMIZERS[name], 1, 1)
        state = trainer.init(0)
        batches = iter(data.train)
        for _ in range(2):
            state, _ = trainer.update(state, next(batches), PEAK)
        return state.params

    return weights


BROAD = ("muoneq", "swan", "racs")  # a recipe's AdamW, one given, `matched`
EXACT = (
    *("muon_plus", "adamuon", "normuon", "sinkgd", "racs", "aro", "eigen_sinkhorn"),
    *("eigen_sign", "eigen_rownorm", "splus", "shampoo", "dion"),
)
ADAMS = ("mars_adamw", "eigen_adam", "soap")  # Their size is Adam's, and no constant.


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.broad if name in BROAD else pytest.mark.slow
        )
        for name in OPTIMIZERS
        if name not in ("adamw", "poet", "oft", "lora")  # The last: test_variants.
    ],
)
def test_the_same_adamw_moves_what_is_no_matrix(after_two_updates, name):
    ours, theirs = after_two_updates(name), after_two_updates("adamw")
    start = step.initial_weights(MODEL, 0)
    for path in (("embed", "embedding"), ("lm_head", "kernel"), ("norm", "scale")):
        got, want = (tree[path[0]][path[1]][...] for tree in (ours, theirs))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    up = lambda tree: tree["layers"][0]["mlp"]["up"]["kernel"][...]
    moved, apart = up(ours) - up(start), up(ours) - up(theirs)
    assert float(np.abs(apart).max()) > 1e-5
    size = float(np.sqrt(np.mean((moved + PEAK * Arena.weight_decay * up(start)) ** 2)))
    if name in EXACT:
        assert size / PEAK == pytest.approx(0.2, rel=1e-3)
    elif name not in ADAMS:
        # Five steps of Newton-Schulz leave singular values between 0.68 and 1.14.
        assert 0.2 * 0.68 < size / PEAK < 0.2 * 1.14


@pytest.mark.parametrize("line", ["{", "3", "[]", "{}", '{"step": "2"}'])
def test_a_damaged_line_of_metrics_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"Line 2 of .*metrics\.jsonl is damaged"):
        Metrics(path, after=2)


def test_metrics_are_cut_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": i, "loss": 0.1 * i}) for i in (1, 2, 3, 4)]
    path.write_text("\n".join(lines) + '\n{"step": 5, "lo')
    metrics = Metrics(path, after=2)
    metrics.write(step=3, loss=7.0)
    metrics.close()
    assert [(row["step"], row["loss"]) for row in read(path)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 7.0),
    ]
