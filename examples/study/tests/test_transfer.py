"""The comparison on a GPU, tried on a CPU with a small model and made-up results."""

import itertools
import lzma
import math
import zipfile

import jax
import numpy as np
import pytest

from examples.pretrain.errors import UserError
from examples.study.bench.config import Result
from examples.study.transfer import cli, corpus, protocol, table, training
from examples.study.transfer.protocol import METHODS, ONE_RATE, ROWS, SEEDS, TUNING

LENGTHS = table.LENGTHS
# The best of each setting in the results that are made up.
BEST = {"adamw": 0.004, "muon": 0.08, "muoneq": 0.001, "soap": 0.003, "aro": 0.004}


def made(config) -> Result:
    """A loss with its minimum at `BEST`, and a curve that falls."""
    c = config
    loss = 1 + math.log2(c.rate / BEST[c.method]) ** 2
    loss += 0.1 * math.log2(c.other_rate / 0.016) ** 2
    loss += (c.b1 == 0.9) + abs(c.decay - 0.4) * (c.method == "adamw")
    loss += c.seed / 1e4 - 0.1 * (c.method == "muon")
    curve = [[0, 9.0], [c.steps // 2, loss + 1], [c.steps, loss]]
    return Result(loss, curve, 2.0 + (c.method == "soap"), 2048, 1.0)


def all_runs():
    """The runs of the whole protocol, in their order."""
    found = {}
    while config := protocol.due(LENGTHS, found):
        assert config not in found
        found[config] = made(config)
    return found


def test_a_search_precedes_the_rows_and_rows_go_seed_by_seed():
    found = all_runs()
    searched = [c for c in found if c.seed == TUNING]
    assert [c.steps for c in found] == [LENGTHS.search] * len(searched) + [
        LENGTHS.whole
    ] * len(SEEDS) * len(ROWS)
    rows = list(found)[len(searched) :]
    assert [c.seed for c in rows] == [s for s in SEEDS for _ in ROWS]
    methods = [key for key, _ in itertools.groupby(c.method for c in searched)]
    assert methods == ["adamw", *METHODS]
    assert LENGTHS.whole == 4 * LENGTHS.search


def test_the_search_finds_the_best_settings():
    found = all_runs()
    best = {name: protocol.tuned(name, LENGTHS, found) for name in ROWS}
    single = best[ONE_RATE]
    assert single.rate == single.other_rate
    assert single.b1 == single.other_b1 == 0.9
    tuned = best["adamw"]
    assert (tuned.rate, tuned.other_rate) == (0.004, 0.016)
    assert (tuned.b1, tuned.decay) == (0.83, 0.4)
    shared = ("other_rate", "other_b1", "other_b2", "other_warm_up", "b1", "warm_up")
    for name in METHODS:
        assert best[name].rate == BEST[name]
        for key in shared:
            assert getattr(best[name], key) == getattr(tuned, key)
        middle, has_b2 = METHODS[name]
        assert best[name].decay == pytest.approx(0.4 * 0.004 / middle, rel=1e-3)
        assert best[name].b2 == (tuned.b2 if has_b2 else None)


def test_no_search_goes_on_for_ever():
    """Rates that only get better towards one end stop after `MOST` of them."""
    found = {}
    while config := protocol.due(LENGTHS, found):
        found[config] = Result(config.rate, [[0, 1.0]], 1.0, 1, 1.0)
    rates = {c.rate for c in found if c.method == "muon" and c.seed == TUNING}
    assert len(rates) == protocol.MOST


def test_a_failed_run_is_not_the_best():
    found = {}
    while config := protocol.due(LENGTHS, found):
        failed = config.method == "soap" and config.rate > 0.002
        found[config] = made(config)
        if failed:
            found[config] = Result(None, [[0, 9.0]], 1.0, 1, 1.0)
    assert protocol.tuned("soap", LENGTHS, found).rate == 0.0015


def test_tables_compare_seeds_that_both_rows_have():
    found = all_runs()
    whole = table.report(found)
    assert f"| `{ONE_RATE}` |" in whole
    muon = next(x for x in whole.splitlines() if "`muon`" in x).split(" | ")
    assert muon[2] == "3"
    assert muon[3] == "-0.1000 ± 0.0000"
    one = {c: r for c, r in found.items() if c.seed in (TUNING, 0)}
    one |= {c: r for c, r in found.items() if c.method == "muon"}
    lines = table.report(one).splitlines()
    muon = next(x for x in lines if "`muon`" in x).split(" | ")
    assert muon[2:4] == ["3", "-0.1000"]
    soap = next(x for x in whole.splitlines() if "`soap`" in x).split(" | ")
    assert float(soap[8]) == pytest.approx(float(soap[4]) * 2 / 3, abs=0.01)
    assert "None" not in table.search(found) + table.settings(found)
    assert table.report({}) == "No row has a run yet."


def test_windows_are_those_of_a_seed_and_none_comes_twice():
    size = training.TINY
    context = size.model.context
    length = 12 * size.batch * context + 1
    starts = training.order(length, 0, 12, size)
    assert starts.shape == (12, size.batch)
    assert len(np.unique(starts)) == starts.size
    assert starts.max() + context + 1 <= length
    np.testing.assert_array_equal(starts, training.order(length, 0, 12, size))
    assert not np.array_equal(starts, training.order(length, 1, 12, size))
    with pytest.raises(ValueError, match="13 steps need 52"):
        training.order(length, 0, 13, size)


def test_the_model_has_ten_million_parameters_and_twenty_tokens_for_each():
    shapes = jax.eval_shape(lambda: training.initial_weights(training.LLAMA, 0))
    count = sum(x.size for x in jax.tree.leaves(shapes))
    size = training.FULL
    tokens = LENGTHS.whole * size.batch * size.model.context
    assert count == pytest.approx(10e6, rel=0.02)
    assert tokens / count == pytest.approx(20, rel=0.01)


def wheel(folder, name, files):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)


def test_the_text_is_every_python_file_once(tmp_path, monkeypatch):
    given = {p: {"packages": [f"{p}_a==1.0"], "sha256": ""} for p in corpus.PARTS}
    given["train"]["packages"] = ["b-c==1.0", "a==1.0"]
    wheels = tmp_path / "wheels"
    long = "x" * (corpus.LONGEST + 1)
    wheel(wheels, "a", {"z.py": "z", "b.py": "b", "c.txt": "no", "d.py": long})
    wheel(wheels, "b_c", {"again.py": "z", "new.py": "new", "empty.py": ""})
    wheel(wheels, "validation_a", {"x.py": "b", "y.py": "y"})
    wheel(wheels, "test_a", {"x.py": "test"})
    monkeypatch.setattr(corpus, "packages", lambda: given)
    digests = corpus.make(tmp_path)
    for part, digest in digests.items():
        given[part]["sha256"] = digest
    found = corpus.read(tmp_path)
    texts = {part: bytes(x) for part, x in found.items()}
    assert texts == {
        "train": b"b\0z\0new\0",
        "validation": b"y\0",
        "test": b"test\0",
    }
    (tmp_path / "test.xz").write_bytes(lzma.compress(b"other"))
    with pytest.raises(UserError, match="is not the text of packages"):
        corpus.read(tmp_path)
    (tmp_path / "test.xz").unlink()
    with pytest.raises(UserError, match="make it with `transfer text`"):
        corpus.read(tmp_path)


def test_the_packages_are_pinned_and_no_part_has_those_of_another():
    listed = corpus.packages()
    assert tuple(listed) == corpus.PARTS
    names = [name for part in listed.values() for name in part["packages"]]
    assert len({name.split("==")[0] for name in names}) == len(names)
    assert all(len(name.split("==")) == 2 for name in names)
    assert all(len(part["sha256"]) == 64 for part in listed.values())


def test_without_a_gpu_a_run_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli.jax, "default_backend", lambda: "cpu")
    assert cli.main(["run", "--results", str(tmp_path / "runs.jsonl")]) == 2
    assert "--attention xla" in capsys.readouterr().err


def test_a_trial_keeps_its_runs_apart(capsys):
    assert cli.main(["run", "--tiny"]) == 2
    assert "--tiny needs --results" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_protocol_runs_on_a_cpu_and_continues(tmp_path, capsys):
    """A stop leaves the finished runs, which are not repeated."""
    path = tmp_path / "runs.jsonl"
    command = ["run", "--tiny", "--results", str(path), "--commit", "abc"]
    assert cli.main([*command, "--seconds", "0"]) == 0
    assert not path.exists() or not path.read_text()
    assert cli.main(command) == 0
    found = table.read(path)
    assert protocol.due(training.TINY.lengths, found) is None
    rows = [r for c, r in found.items() if c.seed != TUNING]
    losses = [r.loss for r in rows if r.loss is not None]
    assert len(losses) == len(ROWS) * len(SEEDS)
    assert max(losses) < 4.5  # That of a fresh model is 5.5.
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join(lines) + "\n")
    assert cli.main(command) == 0
    again = path.read_text().splitlines()[-1]
    cut = lambda line: line.split('"milliseconds"')[0]
    assert cut(again) == cut(last)
    assert '"commit": "abc"' in again
    assert capsys.readouterr().err == ""
