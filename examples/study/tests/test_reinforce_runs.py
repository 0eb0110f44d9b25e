"""Training by reward: the order of runs, the tables, the pictures, the command."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest

from examples.study.bench import commands, results
from examples.study.reinforce import (
    base,
    cli,
    grpo,
    plot,
    ppo,
    protocol,
    runs,
    table,
)
from examples.study.reinforce.methods import ADAMW, METHODS
from examples.study.reinforce.protocol import (
    SEEDS,
    TASKS,
    TUNING,
    Config,
    Entry,
    Outcome,
    due,
)

BEST = {"adamw": 2e-3, "muon": 3.2e-2, "muoneq": 4e-3, "soap": 1e-3}


def made(config: Config) -> Outcome:
    """A return with its maximum at a rate, which differs by the method and the seed."""
    name = config.method.partition(":")[0]
    score = 0.9 - 0.1 * math.log2(config.rate / BEST[name]) ** 2
    score += 0.01 * (config.seed % 10) + 0.05 * (name == "muon")
    score += 0.02 * config.method.endswith("=0.99")
    away = 0.1 * (config.seed % 10)
    curve = [[0, 0.1, 2.0, 0.0], [10, score - 0.1, 1.5, away], [20, score, 1.0, away]]
    return Outcome(round(score, 5), curve, 1.0)


def finished(of=None, make=made) -> dict[Config, Outcome]:
    found: dict[Config, Outcome] = {}
    for entry in protocol.entries():
        if of and entry.task not in of:
            continue
        while config := due(entry, found):
            assert config not in found
            found[config] = make(config)
    return found


def test_the_budget_and_the_order_of_runs():
    found = finished()
    for task in TASKS:
        for method in METHODS:
            mine = [c for c in found if (c.task, c.method) == (task, method)]
            tried = {c.rate for c in mine if c.seed in TUNING}
            least = 7 if method in ADAMW else 5
            assert least <= len(tried) <= protocol.LIMIT
            assert len(mine) == len(tried) * len(TUNING) + len(SEEDS)
            assert [c.seed for c in mine[-10:]] == [*SEEDS]
            others = {(c.other, c.other_rate) for c in mine}
            best = protocol.reference(task, found)
            beside = (None, None) if method in ADAMW else (best.method, best.rate)
            assert others == {beside}
    assert best.method == "adamw:b2=0.99"
    rows = protocol.entries()
    assert protocol.left(rows, found) == 0
    assert protocol.left(rows, {}) == 2 * (2 * (7 * 3 + 10) + 4 * (5 * 3 + 10))
    kinds = [row.method in ADAMW for row in rows]
    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("method", ["adamw:b2=0.99", "muon:b1=0.9", "soap:b1=0.95"])
def test_the_best_rate_has_neighbours(method):
    found = finished(["pendulum"])
    best = protocol.tuned(Entry("pendulum", method), found).rate
    tried = {c.rate for c in found if c.method == method}
    assert {best / 2, best * 2} <= tried
    name = method.partition(":")[0]
    assert best == pytest.approx(BEST[name], rel=0.1)


def test_a_failed_run_is_worse_than_any_other():
    def make(config):
        one = made(config)
        is_lost = config.method == "soap:b1=0.95" and config.rate < 2e-3
        return dataclasses.replace(one, score=None) if is_lost else one

    found = finished(["sums"], make)
    best = protocol.tuned(Entry("sums", "soap:b1=0.95"), found).rate
    assert best >= 2e-3
    config = Config("sums", "soap:b1=0.95", best, ADAMW[1], 2e-3, 3)
    found[config] = dataclasses.replace(found[config], score=None)
    rows = table.table("sums", found).splitlines()
    assert rows[-1].startswith("| `soap:b1=0.95`")
    assert rows[-1].count("failed") == 2
    assert "failed" in table.rates("sums", found)


def test_tables_show_paired_differences():
    found = finished(["sums"])
    rows = {row.split("`")[1]: row.split("|") for row in _body(table.table, found)}
    assert next(iter(rows)).startswith("muon")
    best = {m: protocol.tuned(Entry("sums", m), found) for m in METHODS}
    adamw = [made(dataclasses.replace(best[ADAMW[1]], seed=s)).score for s in SEEDS]
    ours = [made(dataclasses.replace(best[METHODS[2]], seed=s)).score for s in SEEDS]
    difference = np.mean(np.subtract(ours, adamw))
    assert rows[METHODS[2]][4].strip() == f"{difference:+.3f} ± 0.000"
    assert not rows[ADAMW[1]][4].strip()
    assert rows[ADAMW[0]][4].strip() == "-0.020 ± 0.000"
    assert rows[ADAMW[1]][7].strip() == "1.000"
    assert rows[ADAMW[1]][8].strip() == "0.45"
    assert table.table("pendulum", found) == table.LATER
    some = dict([*found.items()][:-1])
    assert "1 of 6 rows do not" in table.table("sums", some)


def _body(shown, found):
    return shown("sums", found).splitlines()[2:]


def test_outcomes_end_where_a_number_is_lost():
    steps = np.arange(5)
    lists = {"score": [0, 1, 2, 3, 5], "entropy": [1] * 5, "divergence": [0] * 5}
    found = {name: np.float32(values) for name, values in lists.items()}
    whole = runs.outcome(steps, found, 1.0)
    assert whole.score == 4.0
    assert whole.curve[-1] == [4, 5.0, 1.0, 0.0]
    found["entropy"][3] = np.nan
    lost = runs.outcome(steps, found, 1.0)
    assert lost.score is None
    assert [row[0] for row in lost.curve] == [0, 1, 2]
    assert json.loads(json.dumps(dataclasses.asdict(lost)))["score"] is None


@pytest.mark.broad
def test_pictures_are_drawn_anew_when_runs_change(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "PATH", tmp_path / "reinforce.jsonl")
    found = finished(["sums"])
    plot.refresh(found)
    path = plot.file_of("sums")
    assert path.read_text().startswith("<?xml")
    assert path.suffix == ".svg"
    assert not plot.file_of("pendulum").exists()
    assert plot.is_current("sums", found)
    before = path.read_bytes()
    plot.draw("sums", plot.shown("sums", found), path)
    assert path.read_bytes() == before
    config = [*found][-1]
    changed = found | {config: dataclasses.replace(found[config], score=None)}
    assert not plot.is_current("sums", changed)
    text = plot.report("sums", found)
    assert "reinforce_sums.svg" in text.splitlines()[-1]
    assert plot.report("pendulum", found) == table.LATER


def test_the_pictures_of_the_repository_show_its_runs():
    found = table.read()
    assert all(plot.is_current(task, found) for task in TASKS)


def test_the_command_continues(tmp_path, monkeypatch, capsys):
    path, done = tmp_path / "reinforce.jsonl", []
    monkeypatch.setattr(base, "weights", lambda: done.append("base"))

    def run_all(rows, path, _, command, left, program):
        assert program == "examples.study.reinforce.runs"
        assert left() > 0
        done.append((rows[0].task, len(rows)))
        monkeypatch.setattr(runs, "run", made)
        for row in rows:
            while runs.run_next(row, path, command):
                pass
        assert left() == 0

    monkeypatch.setattr(commands, "run_all", run_all)
    some = [*finished(["pendulum"]).items()][:40]
    path.write_text("")
    for config, one in some:
        results.append(config, one, path, "before")
    path.write_text(path.read_text() + '{"config": {"ta')  # It was stopped here.
    assert cli.main(["run", "--results", str(path)]) == 0
    assert done == [
        "base",
        *[("pendulum", 1), ("pendulum", 4), ("sums", 2), ("sums", 4)],
    ]
    assert table.read(path) == finished()
    assert "muon" in capsys.readouterr().out
    assert cli.main(["run", "--results", str(path)]) == 0
    assert done[-1] == "base"
    assert cli.main(["table", "--results", str(tmp_path / "none.jsonl")]) == 0
    assert table.LATER in capsys.readouterr().out
    assert cli.main(["run", "--processes", "0"]) == 2


def test_runs_share_programs(monkeypatch):
    """Rates and seeds are numbers of a program; a run hands them over."""
    calls = []

    def program(*form):
        def train(*given):
            calls.append((form, [float(x) for x in given[:3]], given[3]))
            points = len(ppo.steps())
            return {name: np.ones(points) for name in runs.NAMES}

        return train

    monkeypatch.setattr(runs, "_program", program)
    monkeypatch.setattr(runs, "base", types.SimpleNamespace(weights=lambda: "base"))
    runs.run(Config("pendulum", ADAMW[0], 0.5, None, None, 3))
    monkeypatch.setattr(grpo, "steps", ppo.steps)
    runs.run(Config("sums", "muon:b1=0.9", 0.5, ADAMW[1], 0.25, 4))
    assert calls == [
        (("pendulum", ADAMW[0], None), [0.5, 0.0, 3.0], None),
        (("sums", "muon:b1=0.9", ADAMW[1]), [0.5, 0.25, 4.0], "base"),
    ]
