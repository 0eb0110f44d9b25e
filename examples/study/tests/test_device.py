"""The measurements on an accelerator, tried on a CPU at sizes that it can run."""

import itertools
import json
import os
import time

import jax
import pytest

from examples.study.device import _programs, _turns, cli, page, steps, training


def compiled(job):
    """A job of the processes below: it notes when it compiled and when it ran."""
    if job["name"] == "fails":
        raise ValueError("no such method")
    if job["name"] == "dies":
        os._exit(3)
    time.sleep(60 if job["name"] == "compiles" else 0.2)
    start = time.time()

    def run():
        began = time.time()
        time.sleep(60 if job["name"] == "hangs" else 0.2)
        return {"compiled": start, "began": began, "ended": time.time()}

    return run


@pytest.mark.slow
def test_programs_compile_together_and_run_in_turn(tmp_path):
    """No program runs before all are compiled, or beside another; a fault stays one."""
    names = ["a", "b", "fails", "compiles", "hangs", "c", "dies"]
    jobs = [{"module": __name__, "name": name} for name in names]
    rows = list(_turns.run(jobs, 7, limit=20, patience=3, folder=tmp_path))
    assert [row["name"] for row in rows] == names
    errors = {row["name"]: row["error"] for row in rows if "error" in row}
    assert errors.pop("fails") == "ValueError: no such method"
    assert errors.pop("compiles") == "not compiled after 20 seconds"
    assert errors.pop("hangs") == "no result after 3 seconds"
    assert errors.pop("dies").startswith("ended with 3")
    assert not errors
    good = [row for row in rows if "error" not in row]
    assert max(r["compiled"] for r in good) <= good[0]["began"]
    for before, after in itertools.pairwise(good):
        assert before["ended"] <= after["began"]


def test_an_option_of_a_method_is_read():
    """`soap:b1=0.5` sets a keyword; an unknown one is refused with its name."""
    steps.optimizer("soap:b1=0.5,update_interval=2")
    with pytest.raises(TypeError, match="nonsense"):
        steps.optimizer("muon:nonsense=1")


@pytest.mark.daily("steps")
@pytest.mark.parametrize("part", ["steps", "training"])
def test_a_part_runs_on_a_cpu(part, tmp_path, capsys):
    """The parts measure, print a table and write what they measured."""
    options = ["--tiny", "--names", "muoneq", "--out", str(tmp_path)]
    options += ["--methods", "muoneq"]
    assert cli.main([part, *options]) == 0
    rows = json.loads((tmp_path / f"{part}.json").read_text())
    mine = rows[-1]
    assert mine["name"] == "muoneq"
    assert mine["ms"] > 0
    assert "muoneq" in capsys.readouterr().out
    if part == "steps":
        assert mine["finite"]
        assert rows[0]["name"] == steps.ADAMW
        assert rows[0]["memory"] == pytest.approx(4, abs=0.1)
    else:
        losses = [loss for _, _, loss in mine["curve"]]
        assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["steps", "training"])
def test_programs_are_compiled_in_advance(part, tmp_path, capsys):
    """A second process loads what the first kept, and runs it; no part is left out."""
    name = "soap" + steps.AUTO
    options = [part, "--tiny", "--names", name, "--methods", "soap"]
    options += ["--out", str(tmp_path), "--programs", str(tmp_path / "programs")]
    assert cli.main([*options, "--ahead", "here"]) == 0
    assert not list(tmp_path.glob("*.json"))
    kept = list((tmp_path / "programs").glob("*.program"))
    assert len(kept) == (6 if part == "steps" else 4)  # Two are shared by the methods.
    assert cli.main(options) == 0
    mine = json.loads((tmp_path / f"{part}.json").read_text())[-1]
    assert mine["ms"] > 0
    assert mine["name"] in capsys.readouterr().out
    kept[0].write_bytes(b"not a program")
    assert cli.main(options) == 1


def test_a_program_that_xla_cannot_read_is_compiled(tmp_path, monkeypatch):
    """So it was with AdamW's on an H200."""

    def refuse(*_):
        raise jax.errors.JaxRuntimeError("Failed to parse message")

    job = {"name": "double", "programs": str(tmp_path)}
    shape, double = jax.ShapeDtypeStruct((), "float32"), jax.jit(lambda x: 2 * x)
    kept = _programs.compiled(job | {"ahead": "here"}, "step", double, shape)
    assert len(list(tmp_path.iterdir())) == 1
    loader = "examples.study.device._programs.serialize_executable.deserialize_and_load"
    monkeypatch.setattr(loader, refuse)
    assert _programs.compiled(job, "step", double, shape)(3.0) == kept(3.0) == 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("steps --ahead h200", "--ahead needs --programs, the folder to fill"),
        ("kernels --ahead h200 --programs x", "--ahead compiles steps, training, got"),
        ("steps --ahead h300 --programs x", "invalid choice: 'h300'"),
    ],
)
def test_what_cannot_be_compiled_in_advance_is_refused(options, error, capsys):
    """Before a process starts."""
    with pytest.raises(SystemExit):
        cli.main(options.split())
    assert error in capsys.readouterr().err


def test_programs_of_other_sources_are_not_loaded(tmp_path, monkeypatch):
    """A folder may be filled again by other code."""
    job = {"name": "double", "programs": str(tmp_path), "ahead": "here"}
    shape, double = jax.ShapeDtypeStruct((), "float32"), jax.jit(lambda x: 2 * x)
    _programs.compiled(job, "step", double, shape)
    monkeypatch.setattr(_programs, "_sources", lambda: "others")
    _programs.compiled(job, "step", double, shape)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_rates_are_measured_on_a_cpu(tmp_path):
    """A precision that a platform lacks is reported and does not stop the rest."""
    assert cli.main(["products", "--tiny", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "products.json").read_text())
    by_name = {row["name"]: row for row in found[0]["products"]}
    assert by_name["float32, HIGHEST"]["error"] < 1e-6
    assert "not supported" in by_name["float32, TF32"]["problem"]


def test_the_page_of_gpus_has_what_was_measured():
    """Its tables are printed from the committed measurements."""
    text = (page.PATH.parents[1] / "pages" / "gpu.md").read_text()
    rows = page.measured()
    lines = [*page.steps(rows), *page.newton_schulz(rows)]
    assert len(lines) > 40
    assert [line for line in lines if line not in text] == []


def test_measurements_are_added_without_small_kernels(tmp_path, monkeypatch):
    """What failed is left out; of a profile the slowest kernels stay."""
    monkeypatch.setattr(page, "PATH", tmp_path / "device.jsonl")
    row = {"name": "muon", "model": "small", "ms": 2.0, "single_ms": 1.5, "tiny": True}
    slow = {"profile": [("all", 90, 9.0), *[(f"k{i}", 1, 1.0) for i in range(50)]]}
    (tmp_path / "steps.json").write_text(
        json.dumps([row | slow, row | {"error": "none"}])
    )
    page.main(["--add", str(tmp_path / "steps.json"), "--note", "here"])
    (kept,) = page.measured()
    assert (kept["part"], kept["note"], kept["ms"]) == ("steps", "here", 2.0)
    assert [k for k, _, _ in kept["profile"]] == ["all", *(f"k{i}" for i in range(11))]
    assert "tiny" not in kept


@pytest.mark.broad
def test_books_are_split_into_two_texts():
    """Nothing is held out that is trained on."""
    train, held_out = training.tokens()
    assert len(train) > 8 * len(held_out)
    assert bytes(held_out[:2000]) not in bytes(train)
