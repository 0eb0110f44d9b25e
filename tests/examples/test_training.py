"""Updates, accumulation, sweeps with one compilation, and metrics."""

import dataclasses
import functools
import json

import jax
import numpy as np
import optax
import pytest

from examples.pretrain import step
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, from_texts
from examples.pretrain.directory import Metrics, read
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import OPTIMIZERS, Arena

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


@pytest.mark.broad
def test_state_bytes_count_every_array():
    params = step.initial_weights(MODEL, 0)
    state = optax.scale_by_adam().init(params)
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert step.state_bytes(state) == 8 * weights + 4
    assert step.state_bytes(jax.eval_shape(lambda: state)) == 8 * weights + 4


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
        # LoRA is in test_variants; the others' steps are of another size.
        if name not in ("adamw", "poet", "oft", "muonh", "lora")
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
