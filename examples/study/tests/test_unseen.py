"""Unseen tasks: their data, the order of runs, the rules, and the tables."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import optax_matrix as om
from examples.study.bench import commands, results
from examples.study.bench.config import Result
from examples.study.unseen import cli, protocol, runs, table, tasks
from examples.study.unseen.protocol import CHOOSING, CONFIRMING, FORMS, LAST, Config

EVERY = (*CHOOSING, *CONFIRMING)
# What MuonEq gains by form in runs that are made by hand.
GAINS = {
    "adamw": 0.0,
    "1": 0.1,
    "one:2": 0.2,
    "one:4": -0.5,
    "two:2": 0.3,
    "two:4": 0.4,
}


def made(config: Config, best: float = 4e-3) -> Result:
    """A loss with its minimum at a rate, which falls by the form."""
    by_seed = 1 + (config.seed % 10) / 100
    loss = math.exp(math.log2(config.rate / best) ** 2 - GAINS[config.form]) * by_seed
    if config.task == "gru" and config.form == "two:4":
        loss *= math.e if config.seed in LAST else 1.0
    return Result(loss, [[0, 9.0], [10, loss]], 1.0, 64, 1.0)


def finished(best: float = 4e-3, of=EVERY) -> dict[Config, Result]:
    found: dict[Config, Result] = {}
    for task in of:
        while config := protocol.due(task, found):
            assert config not in found
            found[config] = made(config, best)
    return found


@pytest.mark.broad
def test_every_task_has_a_model_whose_leaves_are_known():
    assert set(tasks.TASKS) == set(EVERY)
    for name, task in tasks.TASKS.items():
        params = jax.eval_shape(lambda task=task: task.init(0))
        labels = om.matrices.label_params(tasks.rule(name))(params)
        assert set(jax.tree.leaves(labels)) == {"matrix", "other"}, name


def test_the_sets_of_a_task_share_nothing():
    for arrays in (tasks._small_digits(), tasks._doctor_visits()):
        sizes = {name: len(next(iter(x.values()))) for name, x in arrays.items()}
        assert min(sizes.values()) > 200
    places = [set(x) for x in tasks._divided(1797, (2 / 3, 1 / 6, 1 / 6))]
    assert sum(map(len, places)) == len(set.union(*places)) == 1797
    masks = np.array([*tasks._masks().values()])
    np.testing.assert_array_equal(masks.sum(0), 1)
    assert masks[0].sum() == 179


def test_neighbours_are_the_nearest_ones():
    graph = tasks._graph()
    nodes = graph["nodes"].astype(np.float64)
    for place in (0, 700, 1796):
        distances = ((nodes - nodes[place]) ** 2).sum(1)
        distances[place] = np.inf
        furthest = distances[graph["neighbours"][place]].max()
        assert (distances < furthest * (1 - 1e-5)).sum() < tasks.NEIGHBOURS


def test_the_deviance_is_zero_for_a_perfect_prediction():
    class Perfect(nnx.Module):
        def __call__(self, rows):
            return jnp.log(rows[:, 0])

    visits = np.array([1, 2, 5], "f")
    batch = {"rows": visits[:, None], "visits": visits}
    loss = jax.jit(lambda batch: tasks._visits(Perfect(), batch))
    assert abs(float(loss(batch))) < 1e-6
    assert float(loss(batch | {"visits": np.array([2, 3, 6], "f")})) > 0.05


def test_images_are_the_same_in_every_run_and_held_out_ones_are_others():
    first, again = (tasks.TASKS["unet"].batches(3, 2, 4) for _ in range(2))
    np.testing.assert_array_equal(first["noisy"], again["noisy"])
    noise = first["noisy"] - first["pixels"]
    assert abs(noise.std() - tasks.NOISE) < 0.02
    sets = [tasks.held_out("unet", which)["pixels"] for which in ("validation", "test")]
    assert not np.array_equal(*sets)


def test_the_budget_of_runs():
    found = finished()
    for task in EVERY:
        count = sum(config.task == task for config in found)
        rows = len(FORMS) * (10 if task in CHOOSING else 5)
        assert count == (5 + 5) * 2 + rows
    assert protocol.left(EVERY, found) == 0
    assert protocol.left(EVERY, {}) == len(found)


def test_the_bracket_of_adamw_goes_on_at_both_ends():
    for best in (1.25e-4, 0.128):
        found = finished(best, ["gru"])
        assert protocol.adamw("gru", found) == pytest.approx(best)
    far = finished(1e3, ["gru"])
    assert len({c.rate for c in far if c.form == "adamw"}) == protocol.LIMIT


def test_rules_choose_by_validation_and_are_scored_by_the_test_set():
    found = finished()
    rates = "the best of 1, 2 and 4 times"
    assert protocol.form_of(rates, "mixer", found) == "one:2"
    assert protocol.form_of(f"{rates}, other leaves at once", "mixer", found) == "two:4"
    score = protocol.score("twice that rate", CHOOSING, (0, 1), found)
    assert score == pytest.approx(-0.2)
    assert protocol.chosen(found) == "four times, other leaves at once"
    rows = table.rules(found).splitlines()
    (row,) = (one for one in rows if one.startswith("| **four times, other"))
    shares = [math.expm1(-0.4), math.expm1((-0.4 * 3 + 1) / 3), math.expm1(-0.4)]
    assert [f"{100 * share:+.1f}%" for share in shares] == [
        cell.strip() for cell in row.split("|")[2:5]
    ]
    assert row.split("|")[5].strip() == f"gru, {100 * math.expm1(0.6):+.1f}%"


def test_a_failed_run_is_worse_than_any_other():
    found = finished()
    config = Config("gru", "two:4", 4e-3, 0)
    found[config] = Result(None, [[0, 9.0]], 1.0, 64, 1.0)
    assert "four" not in protocol.chosen(found)
    assert "failed" in table.rules(found)
    assert "failed" in table.tasks(found)


@pytest.mark.broad
def test_one_rate_or_two():
    params = {"up": {"kernel": np.ones((4, 4), "f")}, "bias": np.ones(4, "f")}
    rule = lambda _: om.matrices.by_path(include="kernel")
    updates = {}
    for form in ("1", "one:4", "two:4"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "rule", rule)
            tx = runs.optimizer("gru", form, 1e-2)
        step, _ = tx.update(params, tx.init(params), params)
        updates[form] = [float(np.abs(x).mean()) for x in jax.tree.leaves(step)]
    bias, kernel = np.divide(updates["one:4"], updates["1"])
    assert bias == pytest.approx(4, rel=1e-3)
    assert kernel == pytest.approx(4, rel=1e-2)
    bias, kernel = np.divide(updates["two:4"], updates["1"])
    assert bias == pytest.approx(1, rel=1e-3)
    assert kernel == pytest.approx(4, rel=1e-2)


def test_the_command_continues(tmp_path, monkeypatch, capsys):
    path = tmp_path / "unseen.jsonl"
    done = []

    def run_all(names, path, _, command, left, program):
        assert left() == 390 - len(some)
        assert program == "examples.study.unseen.runs"
        for name in names:
            while config := protocol.due(name, results.read(path, Config)):
                results.append(config, made(config), path, command)
                done.append(config)

    monkeypatch.setattr(commands, "run_all", run_all)
    some = finished(of=["gru"])
    path.write_text("")
    for config, result in some.items():
        results.append(config, result, path, "before")
    assert cli.main(["run", "--results", str(path)]) == 0
    assert {config.task for config in done} == set(EVERY) - {"gru"}
    assert "**four times, other leaves at once**" in capsys.readouterr().out
    row = json.loads(path.read_text().splitlines()[-1])
    assert row["where"]["command"] == "python -m examples.study unseen run"
    assert cli.main(["table", "--results", str(tmp_path / "none.jsonl")]) == 0
    assert capsys.readouterr().out == f"{table.LATER}\n\n{table.LATER}\n"
    assert cli.main(["run", "--processes", "0"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_run_learns(name, monkeypatch):
    small = dataclasses.replace(tasks.TASKS[name], steps=40)
    monkeypatch.setitem(tasks.TASKS, name, small)
    runs._bench.cache_clear()
    found = runs.run(Config(name, "two:2", 4e-3, 0))
    runs._bench.cache_clear()
    assert found.loss < 0.95 * found.curve[0][1]
