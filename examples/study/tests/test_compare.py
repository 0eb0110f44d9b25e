"""Comparisons: their command line, and the runs that they make."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
from rich.progress import TextColumn

from examples.pretrain import step
from examples.pretrain.bars import named_times
from examples.pretrain.cli import main as train
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, from_texts
from examples.pretrain.optimizers import OPTIMIZERS
from examples.study.compare import comparison
from examples.study.compare.cli import main
from examples.study.compare.protocol import Curve

TINY = ("--context", "8", "--batch", "4", "--steps", "4", "--validation", "4")
EVERY = ("--eval-every", "2")
MODEL = dataclasses.replace(
    SIZES["tiny"], embed=16, mlp=24, heads=2, kv_heads=1, layers=1, context=8
)
TEXT = bytes(range(97, 123)) * 80


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(97, 123)) * 40)
    return str(path)


def mistake(capsys, *arguments):
    """Runs a command that must fail; returns its one line."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


MISTAKES = {
    "unknown argument": (("trian",), "trian"),
    "unknown optimizers": (("--optimizers", "adamw,sgdd"), "muoneq"),
    "no seeds": (("--seeds", "0"), "--seeds must be 1 or more"),
    "rates that are none": (("--learning-rates", "1e-3,,"), "3e-3"),
}


@pytest.mark.parametrize(("arguments", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(capsys, tmp_path, arguments, hint):
    assert hint in mistake(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_long_name_of_a_directory_gets_one_line(capsys, tmp_path, text):
    out = str(tmp_path / ("x" * 300))
    said = mistake(capsys, "--data", text, *TINY, "--out", out)
    assert "File name too long" in said
    assert "another --out" in said


@pytest.mark.parametrize("record", [b"", b'{"model": ', b"[]", b"null", b"\xff\xfe"])
def test_a_damaged_record_gets_one_line(capsys, tmp_path, text, record):
    (tmp_path / "run.json").write_bytes(record)
    said = mistake(capsys, "--data", text, *TINY, "--out", str(tmp_path))
    assert "run.json is damaged" in said
    assert "another --out" in said
    assert (tmp_path / "run.json").read_bytes() == record


def test_a_file_as_a_directory_gets_one_line(capsys, tmp_path, text):
    out = tmp_path / "file"
    out.write_text("")
    said = mistake(capsys, "--data", text, *TINY, "--out", str(out))
    assert "file is a file; choose another --out." in said


@pytest.mark.slow
def test_a_run_is_not_overwritten(capsys, tmp_path, text):
    out = str(tmp_path / "run")
    assert train(["--data", text, *TINY, *EVERY, "--out", out]) == 0
    capsys.readouterr()
    assert "another --out" in mistake(capsys, "--data", text, *TINY, "--out", out)


@pytest.mark.slow
def test_compare_runs_shared_rotations(tmp_path, text):
    out = tmp_path / "comparison"
    names = ("--optimizers", "aro:sharing=chain", "--learning-rates", "1e-2")
    command = ["--data", text, *TINY, *EVERY, *names, "--out", str(out)]
    assert main(command) == 0
    adamw, aro = json.loads((out / "results.json").read_text())["curves"]
    assert aro["optimizer"] == "aro:sharing=chain"
    assert aro["losses"][-1] < aro["losses"][0]
    assert aro["losses"] != adamw["losses"]


@pytest.mark.slow
def test_an_optimizer_of_a_user_and_pictures_for_a_paper(tmp_path, monkeypatch, text):
    source = (
        "import optax\n\ndef make(rate, b1=0.9):\n    return optax.lion(rate, b1=b1)\n"
    )
    (tmp_path / "mine_to_compare.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "comparison"
    mine = "mine_to_compare:make@1e-3,mine_to_compare:make:b1=0.5@1e-3"
    some = ("--optimizers", mine, "--learning-rates", "1e-3")
    assert main(["--data", text, *TINY, *EVERY, *some, "--out", str(out)]) == 0
    curves = json.loads((out / "results.json").read_text())["curves"]
    assert [c["optimizer"].count(":") for c in curves] == [0, 1, 2]
    assert len({c["losses"][-1] for c in curves}) == 3
    assert (out / "curves.svg").read_text().startswith("<?xml")
    assert (out / "curves.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.broad
def test_compare_prints_a_table_and_may_be_repeated(capsys, tmp_path, text):
    out = tmp_path / "comparison"
    some = ("--optimizers", "muon", "--learning-rates", "1e-3,1e-2")
    command = ["--data", text, *TINY, *EVERY, *some, "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "adamw" in printed
    assert "muon" in printed
    assert "Nothing is extrapolated" in " ".join(printed.split())
    assert (out / "curves.png").stat().st_size > 10_000
    assert printed.splitlines()[-1] == f"report in {out / 'report.html'}"
    assert "muon" in (out / "report.html").read_text()
    curves = json.loads((out / "results.json").read_text())["curves"]
    assert [c["optimizer"] for c in curves] == ["adamw", "adamw", "muon"]
    assert main(command) == 0
    again = json.loads((out / "results.json").read_text())["curves"]
    assert [c["losses"] for c in again] == [c["losses"] for c in curves]
    capsys.readouterr()
    assert "another --out" in mistake(capsys, *command, "--seeds", "2")


@pytest.mark.broad
def test_an_interrupted_comparison_goes_on(capsys, tmp_path, monkeypatch, text):
    """Its finished runs are read, the others made: the same losses as in one go."""
    some = ("--optimizers", "muon", "--learning-rates", "1e-3,1e-2")
    command = ["--data", text, *TINY, *EVERY, *some]
    whole, out = tmp_path / "whole", tmp_path / "parts"
    assert main([*command, "--out", str(whole)]) == 0
    made, run = [], comparison._run

    def until(count):
        def stop(plan, trainer, name, rate, *rest):
            if len(made) == count:
                raise KeyboardInterrupt
            made.append((name, rate))
            return run(plan, trainer, name, rate, *rest)

        return stop

    monkeypatch.setattr(comparison, "_run", until(2))
    capsys.readouterr()
    with contextlib.suppress(KeyboardInterrupt):
        assert main([*command, "--out", str(out)]) > 2
        assert "start it again to go on" in capsys.readouterr().err
    assert made == [("adamw", 1e-3), ("adamw", 1e-2)]
    monkeypatch.setattr(comparison, "_run", until(3))
    assert main([*command, "--out", str(out)]) == 0
    assert [name for name, _ in made[2:]] == ["muon"]
    curves = [
        json.loads((x / "results.json").read_text())["curves"] for x in (whole, out)
    ]
    assert [c["losses"] for c in curves[1]] == [c["losses"] for c in curves[0]]
    assert not (out / "finished.jsonl").exists()


def test_runs_of_a_changed_module_and_an_incomplete_line_do_not_count(
    tmp_path, monkeypatch
):
    path = tmp_path / "finished.jsonl"
    first, second = (Curve("mine:make", r, 0, (6,), (r,), 1.0, 0) for r in (1e-3, 1e-2))
    monkeypatch.setattr(comparison, "version", lambda _: "a file")
    comparison.Finished(path).add(first)
    comparison.Finished(path).add(second)
    path.write_bytes(path.read_bytes()[:-7])
    found = comparison.Finished(path)
    assert found.get("mine:make", 1e-3, 0) == first
    assert found.get("mine:make", 1e-2, 0) is None
    found.add(second)
    assert comparison.Finished(path).get("mine:make", 1e-2, 0) == second
    monkeypatch.setattr(comparison, "version", lambda _: "another file")
    assert comparison.Finished(path).get("mine:make", 1e-3, 0) is None


def test_the_bar_of_the_whole_counts_every_run():
    names = ("adamw", "own", "muon")
    plan = dataclasses.replace(PLAN, optimizers=names, own_rates={"own": 1e-3})
    assert comparison._runs(plan) == 2 * (3 + 1 + 1)
    assert comparison._runs(dataclasses.replace(plan, sweep="all")) == 2 * (3 + 1 + 3)


def test_times_of_a_bar_have_names():
    said = [x.text_format for x in named_times() if isinstance(x, TextColumn)]
    assert said == ["elapsed", "left"]


PLAN = comparison.Comparison(
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
    curves = comparison.compare(
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

    def sweep(_plan, name, rates, *_):
        loss = losses.get(name, {})
        return [Curve(name, r, 0, (6,), (loss.get(r, 1.0),), 1.0, 0) for r in rates]

    monkeypatch.setattr(comparison, "_sweep", sweep)
    plan = dataclasses.replace(
        PLAN,
        optimizers=("adamw", "bad", "own", "last"),
        learning_rates=(1e-2, 3e-3),
        seeds=0,
        own_rates={"own": 7e-3},
    )
    got = [
        (c.optimizer, c.learning_rate) for c in comparison.compare(plan, lambda _: None)
    ]
    assert got[2:] == [("bad", 1e-2), ("own", 7e-3), ("last", 1e-2)]


@pytest.mark.broad
def test_comparison_ends_a_diverged_run_early(compared):
    diverged = [c for c in compared[0] if c.learning_rate == 1e30]
    assert all(c.final == np.inf and np.isnan(c.losses[-1]) for c in diverged)


@pytest.mark.slow
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
