"""Times beside AdamW's."""

import json
import os
import runpy

import pytest

from examples.pretrain.errors import UserError
from examples.study.bench import cli, times
from examples.study.bench.tasks import TASKS
from examples.study.bench.times import Time


class Fake:
    """Updates of a method that takes twice AdamW's time, on a machine that slows."""

    def __init__(self, task, method, setting, steps, batch):
        assert (task, setting, steps, batch) == ("books", "matched", 400, 16)
        self.seconds = 0.02 if method == "muon" else 0.01

    def times(self, settings, block):
        assert (settings, block) == (TASKS["books"].rate, times.BLOCK)
        yield 100.0  # It compiles.
        for turn in range(times.TURNS):
            yield self.seconds * (1 + turn)


@pytest.mark.broad
def test_times_are_compared_turn_by_turn_without_compilation(monkeypatch):
    monkeypatch.setattr(times, "bench", Fake)
    got = times.measure("books", "muon")
    assert got == Time("books", "muon", 100.0, 2.0)


def test_lapack_has_one_thread(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    runpy.run_module("examples.study.__main__", run_name="a worker's")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


def test_what_the_file_has_is_not_measured_again(tmp_path, monkeypatch, capsys):
    path, measured = tmp_path / "times.jsonl", []

    def measure(task, method):
        measured.append(method)
        return Time(task, method, 20.0, 1.25)

    monkeypatch.setattr(times, "measure", measure)
    monkeypatch.setattr(times, "MATCHED", ["adamw", "muon"])
    monkeypatch.setattr(times, "alone", str)
    times._work(["books"], path, "time")
    first = path.read_text()
    path.write_text(first + first[:20])  # It was cut while it wrote.
    monkeypatch.setattr(times, "MATCHED", ["adamw", "muon", "aro"])
    times.results.prepare(path)
    times._work(["books"], path, "time")
    assert measured == ["adamw", "muon", "aro"]
    assert capsys.readouterr().out.endswith("books aro: 1.25\n")
    assert json.loads(first.splitlines()[0])["where"]["command"] == "time"
    rows = times.table(times.read(path)).splitlines()
    assert rows[2:] == [
        "| `adamw` |  | 20.0 ms |  |",
        "| `muon` |  | 1.25 |  |",
        "| `aro` |  | 1.25 |  |",
    ]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "times.jsonl"
    path.write_text("nothing\n")
    with pytest.raises(UserError, match="is damaged; delete it"):
        times.read(path)


def test_an_unknown_task_is_named(capsys):
    with pytest.raises(SystemExit):
        cli.main(["time", "nothing"])
    assert "no task 'nothing'; choose from shakespeare" in capsys.readouterr().err


@pytest.mark.slow
def test_a_command_measures_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
    path = tmp_path / "times.jsonl"
    names = [name for name in times.MATCHED if name not in ("adamw", "muon")]
    rows = [{"time": Time("digits", name, 1.0, 1.0).__dict__} for name in names]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main(["time", "digits", "--results", str(path)]) == 0
    found = times.read(path)
    assert 0.7 < found["digits", "adamw"].relative < 1.4
    assert found["digits", "muon"].relative > 0.9
    assert f"| `adamw` |  |  | {found['digits', 'adamw'].milliseconds:.1f} ms |" in (
        capsys.readouterr().out
    )
