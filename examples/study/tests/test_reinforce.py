"""Training by reward: formulas, rewards, the pendulum, and both trainings."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from examples.study.reinforce import (
    base,
    formulas,
    grpo,
    methods,
    pendulum,
    ppo,
    runs,
    sums,
)
from examples.study.reinforce.methods import ADAMW, METHODS

MOVED = jax.jit(pendulum.moved)
RANDOM = np.random.default_rng(0)


def test_advantages_of_groups():
    rewards = np.array([[1, 0, 0, 1, 0, 0, 0, 0], [1] * 8, [0] * 8], "f")
    found = np.asarray(jax.jit(formulas.group_advantages)(rewards))
    exact = rewards.astype(np.float64)[0]
    exact = (exact - exact.mean()) / exact.std()
    np.testing.assert_allclose(found[0], exact, rtol=1e-5)
    assert not found[1:].any()


def test_generalized_advantages_are_the_sum_of_later_errors():
    rewards, values = RANDOM.normal(size=(2, 7, 3))
    last = RANDOM.normal(size=3)
    gamma, decay = 0.9, 0.8
    after = np.concatenate([values[1:], last[None]])
    errors = rewards + gamma * after - values
    exact = np.array(
        [
            sum((gamma * decay) ** (k - t) * errors[k] for k in range(t, 7))
            for t in range(7)
        ]
    )
    given = (np.float32(x) for x in (rewards, values, last))
    function = functools.partial(
        formulas.estimated_advantages, gamma=gamma, decay=decay
    )
    found = jax.jit(function)(*given)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


def test_the_clipped_objective():
    ratio = np.array([0.5, 0.5, 0.9, 0.9, 1.5, 1.5])
    advantage = np.array([2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    # It stops where the ratio left the bounds in the direction of the advantage.
    exact = [0.5 * 2, 0.8 * -2, 0.9 * 2, 0.9 * -2, 1.2 * 2, 1.5 * -2]
    given = np.float32(np.log(ratio)), np.float32(advantage)
    found = jax.jit(lambda r, a: formulas.clipped(r, a, 0.2))(*given)
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    slope = jax.grad(lambda r, a: formulas.clipped(r, a, 0.2).sum())
    slope = jax.jit(slope)(*given)
    np.testing.assert_allclose(slope, ratio * advantage * [1, 0, 1, 1, 0, 1], rtol=1e-5)


def test_entropy_and_divergence_are_direct_sums():
    logits, other = RANDOM.normal(size=(2, 5, 9))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, other))
    given = np.float32(logits), np.float32(other)
    found = jax.jit(formulas.entropy)(given[0])
    np.testing.assert_allclose(found, -(p * np.log(p)).sum(-1), rtol=1e-5)
    found = jax.jit(formulas.divergence)(*given)
    np.testing.assert_allclose(found, (p * np.log(p / q)).sum(-1), rtol=1e-4)


def test_normal_distributions_are_integrals():
    x, width = np.linspace(-30, 30, 60_001, retstep=True)
    pairs = (0.3, 0.2), (-0.5, 0.6)
    density = lambda mean, log: (
        np.exp(-0.5 * ((x - mean) / np.exp(log)) ** 2)
        / np.sqrt(2 * np.pi)
        / np.exp(log)
    )
    p, q = (density(*pair) for pair in pairs)
    inside = p > 0
    ratio = np.log(p[inside]) - np.log(np.maximum(q[inside], 1e-300))
    exact = (p[inside] * ratio).sum() * width
    found = jax.jit(formulas.normal_divergence)(*pairs[0], *pairs[1])
    assert float(found) == pytest.approx(exact, rel=1e-4)
    exact = -(p[inside] * np.log(p[inside])).sum() * width
    assert float(jax.jit(formulas.normal_entropy)(0.2)) == pytest.approx(
        exact, rel=1e-4
    )
    found = jax.jit(formulas.normal_log_density)(1.0, 0.3, 0.2)
    exact = np.log(density(0.3, 0.2)[np.abs(x - 1).argmin()])
    assert float(found) == pytest.approx(exact, rel=1e-5)


def test_the_table_of_rewards():
    right = {"21\n": b"21\n", "7\n": b"7\n\n"}
    cases = [
        ("21\n", b"21\n", 1),
        ("21\n", b"12\n", 0),
        ("21\n", b"2\n1", 0),
        ("21\n", b"21.", 0),  # It does not end.
        ("21\n", b"\n21", 0),
        ("7\n", b"7\nx", 1),  # What comes after the end is not read.
        ("7\n", b"7\n\n", 1),
        ("7\n", b"07\n", 0),
        ("7\n", b"77\n", 0),
        ("7\n", b"7 \n", 0),
    ]
    answers = np.array([[*answer] for _, answer, _ in cases])
    wanted = np.array([[*right[name]] for name, _, _ in cases])
    expected = [reward for *_, reward in cases]
    np.testing.assert_array_equal(sums.rewards(answers, wanted), expected)
    found = jax.jit(sums.rewards)(answers, wanted)
    np.testing.assert_array_equal(found, expected)


def test_lines_of_sums():
    lines = np.concatenate([sums.PROMPTS, sums.ANSWERS], 1)
    assert lines.shape == (1000, sums.PROMPT + sums.ANSWER)
    for line in lines:
        text = bytes(line.astype(np.uint8)).decode()
        question, _, answer = text.partition("=")
        assert re.fullmatch(r"\n\d\+\d\+\d", question)
        assert eval(question) == int(answer)
    assert len({line.tobytes() for line in lines}) == 1000
    assert sums.rewards(sums.ANSWERS, sums.ANSWERS).all()
    places = [*range(1000)]
    asked, held_out = places[sums.ASKED], places[sums.OTHERS]
    assert sorted(asked + held_out) == places
    assert len(held_out) == 200


def test_the_pendulum_in_float64():
    """One step by hand: 3 g / (2 l) is 15, 3 / (m l²) is 3, a step is 0.05 s."""
    angle, speed, torque = 0.5, -1.0, 1.2
    fall = 15 * np.sin(angle) + 3 * torque
    new = speed + 0.05 * fall
    states, reward = MOVED(np.float32([angle, speed]), torque)
    np.testing.assert_allclose(states, [angle + 0.05 * new, new], rtol=1e-6)
    exact = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    assert float(reward) == pytest.approx(exact, rel=1e-6)
    seen = jax.jit(pendulum.observed)(np.float32([angle, speed]))
    np.testing.assert_allclose(seen, [np.cos(angle), np.sin(angle), -1 / 8], rtol=1e-6)


def test_the_limits_of_the_pendulum():
    states = np.array([[0.0, 0.0], [np.pi / 2, 7.9], [3 * np.pi, 0.0]], "f")
    strong, weak = (MOVED(states, x) for x in (100.0, 2.0))
    jax.tree.map(np.testing.assert_array_equal, strong, weak)
    assert np.asarray(strong[0])[1, 1] == 8.0
    # The most that a step can cost, with the angle counted from the nearest turn.
    assert np.asarray(weak[1])[2] == pytest.approx(-(np.pi**2 + 0.004), rel=1e-5)
    rest = MOVED(states, 0.0)
    assert np.asarray(rest[1])[0] == 0.0
    np.testing.assert_array_equal(np.asarray(rest[0])[0], states[0])


@pytest.mark.broad
def test_a_small_swing_has_the_period_of_a_rod():
    """About the lowest point the period is 2 pi sqrt(2 l / (3 g)), here 1.62 s."""
    begin = jnp.array([math.pi + 0.01, 0.0])
    step = lambda states, _: (pendulum.moved(states, 0.0)[0],) * 2
    states = np.asarray(jax.lax.scan(step, begin, length=400)[1])
    above = states[:, 0] > math.pi
    rises = np.flatnonzero(~above[:-1] & above[1:])
    period = np.diff(rises).mean() * pendulum.SECONDS
    assert period == pytest.approx(2 * math.pi * math.sqrt(2 / 30), rel=0.01)


def test_only_layers_inside_are_matrices():
    params = jax.eval_shape(ppo.init, jax.random.key(0))
    labels = om.matrices.label_params(runs.HIDDEN)(params)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, label in jax.tree_util.tree_leaves_with_path(labels)
        if label == "matrix"
    }
    layers = (f"hidden_{i}/kernel" for i in range(ppo.LAYERS))
    assert found == {f"{part}/{x}" for x in layers for part in ("policy", "value")}


@pytest.mark.broad
@pytest.mark.parametrize("method", METHODS)
def test_optimizers_take_traced_rates(method):
    params = jax.eval_shape(ppo.init, jax.random.key(0))
    other = None if method in ADAMW else ADAMW[1]

    def update(rate, grads):
        beside = other and (other, rate)
        tx = methods.optimizer(method, rate, beside, runs.HIDDEN, 40)
        return tx.update(grads, tx.init(grads), grads)[0]

    got = jax.eval_shape(update, jnp.float32(0.1), params)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, params)


@pytest.mark.broad
def test_decay_rates_are_those_of_the_name():
    """The second update of AdamW after gradients 1 and 0 shows both decay rates."""
    params = {"x": np.ones(3, "f")}
    for name, b2 in zip(ADAMW, (0.999, 0.99), strict=True):
        tx = methods.optimizer(name, 1e-3, None, None, 2000)
        state = tx.init(params)
        _, state = tx.update({"x": np.full(3, 0.1, "f")}, state, params)
        step, _ = tx.update({"x": np.zeros(3, "f")}, state, params)
        first = 0.9 * 0.1 * 0.1 / (1 - 0.9**2)
        second = b2 * (1 - b2) * 0.1**2 / (1 - b2**2)
        exact = -2e-5 * first / np.sqrt(second)  # The second of 100 steps of warm-up.
        np.testing.assert_allclose(step["x"], exact, rtol=1e-4)
    matrix = {"kernel": RANDOM.normal(size=(4, 4)).astype("f")}
    largest = np.abs(matrix["kernel"]).max() / np.linalg.norm(matrix["kernel"])
    for name in methods.MATRIX:
        b1 = float(name.partition("b1=")[2])
        tx = methods.optimizer(name, 1e-3, (ADAMW[0], 1e-3), None, 2000)
        state = tx.init(matrix)
        for grads in (matrix, jax.tree.map(np.zeros_like, matrix)):
            _, state = tx.update(grads, state, matrix)
        (mu,) = (
            leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
            if ".mu[" in jax.tree_util.keystr(path)
        )
        size = float(np.abs(mu).max())
        assert size == pytest.approx(b1 * (1 - b1) * largest, rel=1e-5), name


class Cycle:
    """A model that says 7, then the end of the line, with a share of certainty."""

    def __init__(self, sure: float):
        self._sure = sure

    def __call__(self, params, rows):
        del params
        time = rows.shape[1]
        byte = jnp.where(jnp.arange(time) == sums.PROMPT - 1, ord("7"), sums.END)
        sharp = jax.nn.one_hot(byte, 256) * self._sure + (1 - self._sure) / 256
        return jnp.broadcast_to(jnp.log(sharp), (len(rows), time, 256))


@pytest.mark.broad
def test_what_a_known_model_earns(monkeypatch):
    monkeypatch.setattr(base, "next_logits", Cycle(0.75))
    monkeypatch.setattr(grpo.base, "next_logits", Cycle(0.75))
    found = jax.jit(grpo.measure)(None, None, jax.random.key(0))
    questions = sums.QUESTIONS[sums.OTHERS].sum(1)
    right = 0.75 + 0.25 / 256
    wrong = 0.25 / 256
    one = [right**2 if n == 7 else wrong * right for n in range(10)]
    exact = np.mean([one[n] if n < 10 else wrong**2 * right for n in questions])
    assert float(found["score"]) == pytest.approx(exact, rel=1e-4)
    spread = -(right * np.log(right) + 255 * wrong * np.log(wrong))
    assert float(found["entropy"]) == pytest.approx(spread, rel=1e-4)
    assert abs(float(found["divergence"])) < 1e-6
    taken = jax.jit(grpo.collected)(None, None, jax.random.key(1))
    lines = np.asarray(taken["rows"])
    groups = lines.reshape(grpo.PROMPTS, grpo.GROUP, -1)
    assert (groups[:, :, : sums.PROMPT] == groups[:, :1, : sums.PROMPT]).all()
    asked = {row.tobytes() for row in sums.PROMPTS[sums.ASKED]}
    assert {row.tobytes() for row in lines[:, : sums.PROMPT]} <= asked
    sevens = lines[:, sums.PROMPT] == ord("7")
    assert abs(sevens.mean() - right) < 0.15
    np.testing.assert_allclose(taken["before"][sevens, 0], np.log(right), rtol=1e-4)


def test_the_loss_of_answers_counts_bytes_to_the_end(monkeypatch):
    logits = RANDOM.normal(size=(2, sums.ANSWER, 256)).astype("f")
    monkeypatch.setattr(grpo.base, "logits_of", lambda *_: logits)
    answers = np.array([[*b"7\n4"], [*b"12\n"]])
    rows = np.concatenate([sums.PROMPTS[:2], answers], 1)
    exact = logits.astype(np.float64)
    logs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    now = np.take_along_axis(logs, answers[..., None], -1)[..., 0]
    ratio = np.array([[0.7, 1.1, 9.0], [1.4, 1.0, 1.3]])
    advantages = np.repeat([[1.5], [-0.5]], 3, 1)
    base_logits = RANDOM.normal(size=logits.shape)
    other = base_logits - np.log(np.exp(base_logits).sum(-1, keepdims=True))
    away = (np.exp(logs) * (logs - other)).sum(-1)
    gain = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages)
    whole = (gain - grpo.TO_BASE * away)[[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    taken = {
        "rows": rows,
        "before": np.float32(now - np.log(ratio)),
        "advantages": np.float32(advantages),
        "base": np.float32(base_logits),
    }
    loss = jax.jit(functools.partial(grpo.loss, None))(taken)
    assert float(loss) == pytest.approx(-whole.mean(), rel=1e-4)


@pytest.mark.broad
def test_sampling_agrees_with_whole_lines():
    """The log probabilities of drawing are those of the finished lines."""
    params = base.TASK.init(0)
    prompts = sums.PROMPTS[:4]
    answers, logs = jax.jit(grpo.sample)(params, prompts, jax.random.key(0))
    rows = np.concatenate([prompts, answers], 1)
    whole = jax.jit(base.logits_of)(params, rows)
    found = grpo.log_probabilities(whole, answers)
    np.testing.assert_allclose(logs, found, rtol=1e-4, atol=1e-5)


@pytest.mark.broad
def test_the_base_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "CACHE", tmp_path / "runs")
    params = base.TASK.init(1)
    first = base._kept("some", lambda: params)
    again = base._kept("some", lambda: pytest.fail("It was made twice."))
    for one in (first, again):
        assert jax.tree.all(jax.tree.map(np.array_equal, one, params))


@pytest.mark.slow
def test_a_policy_learns_to_say_one(monkeypatch):
    """The base begins most answers with a 1; then only ``1`` is right."""
    first = base.taught(base.TASK.init(0), 60)
    monkeypatch.setattr(grpo, "STEPS", 24)
    monkeypatch.setattr(grpo, "POINTS", 2)
    monkeypatch.setattr(sums, "ANSWERS", np.tile([*b"1\n\n"], (1000, 1)))
    tx = methods.optimizer(ADAMW[1], 1e-3, None, None, 48)
    found = jax.jit(lambda: grpo.train(tx, first, 0))()
    assert found["score"][-1] > found["score"][0] + 0.3
    assert found["divergence"][0] == 0 < found["divergence"][-1]


@pytest.mark.slow
def test_a_policy_learns_to_swing_up(monkeypatch):
    monkeypatch.setattr(ppo, "ROUNDS", 12)
    monkeypatch.setattr(ppo, "UPDATES", 480)
    tx = methods.optimizer(ADAMW[1], 4e-3, None, None, 480)
    found = jax.jit(lambda: ppo.train(tx, 0))()
    assert found["score"][0] < -1000
    assert found["score"][-1] > -400
    assert found["divergence"][0] == 0
    assert (found["divergence"][1:] > 0).all()


def test_rewards_need_no_optimizer():
    """Both trainings are functions of any optimizer."""
    sgd = optax.sgd(0.1)
    shapes = jax.eval_shape(lambda: ppo.train(sgd, 0))
    assert {x.shape for x in shapes.values()} == {(ppo.ROUNDS + 1,)}
    params = jax.eval_shape(base.TASK.init, 0)
    shapes = jax.eval_shape(lambda first: grpo.train(sgd, first, 0), params)
    assert {x.shape for x in shapes.values()} == {(grpo.POINTS + 1,)}
    assert [len(x.steps()) for x in (ppo, grpo)] == [ppo.ROUNDS + 1, grpo.POINTS + 1]
