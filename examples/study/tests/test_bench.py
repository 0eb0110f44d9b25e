"""The protocol of the study and its statistics, on results made by hand."""

import dataclasses
import json
import math
import pathlib
import re

import numpy as np
import pytest
from scipy import stats

from examples.pretrain.errors import UserError
from examples.study.bench import (
    cli,
    comparison,
    overall_table,
    plot,
    results,
    summary_table,
    table,
    times,
)
from examples.study.bench.config import Config, Result
from examples.study.bench.search import (
    FRESH,
    LIMIT,
    SEEDS,
    TUNING,
    Entry,
    best_rate,
    due,
    expected,
    next_power,
)
from examples.study.bench.statistics import (
    difference,
    ranked,
    row,
    speedups,
    steps_to,
)
from examples.study.bench.studies import STUDIES
from examples.study.bench.tasks import MAIN

ENTRY = Entry("books", "muon", "matched", 0.01, 40, 2)
ADAMW = Entry("books", "adamw", "matched", 0.01, 40, 2)


def result(loss, curve=None, ms=2.0):
    curve = curve or [[0, 5.0], [20, 4.0], [40, loss or 9.0]]
    return Result(loss, curve, ms, 2048, 1.0)


def finished(entry, loss_at):
    """All results of an entry by its own protocol: loss from (rate, seed)."""
    found = {}
    while config := due(entry, found):
        found[config] = result(loss_at(config.rate, config.seed))
    return found


def bowl(best):
    return lambda rate, _: 1 + math.log2(rate / best) ** 2


@pytest.mark.parametrize("power", [0, 1, 2, -2, 4, -5])
def test_the_search_ends_with_the_best_rate_inside(power):
    found = finished(ENTRY, bowl(0.01 * 2.0**power))
    rates = sorted(c.rate for c in found if c.seed == TUNING)
    best = best_rate(ENTRY, found)
    assert best == pytest.approx(0.01 * 2.0**power)
    assert rates[0] < best < rates[-1]
    assert len(rates) == max(5, abs(power) + 4)
    assert sorted(c.seed for c in found if c.rate == best) == [*SEEDS, TUNING]


def test_failed_runs_are_worse_than_any_other_and_lead_to_smaller_rates():
    found = finished(ENTRY, lambda rate, _: None if rate > 0.001 else 1 - rate)
    assert best_rate(ENTRY, found) == pytest.approx(0.01 / 16)
    lost = finished(ENTRY, lambda *_: None)
    assert min(c.rate for c in lost) == pytest.approx(0.01 * 2.0**-LIMIT)


def test_a_search_does_not_go_on_for_ever():
    found = finished(ENTRY, lambda rate, _: 1 / rate)
    assert max(c.rate for c in found) == pytest.approx(0.01 * 2.0**LIMIT)
    assert next_power(ENTRY, {p: -p for p in range(-2, LIMIT + 1)}) is None


def test_an_entry_without_search_gets_its_rate_only():
    entry = Entry("books", "adamw", "matched", 0.02, 40, 2, trials=())
    found = finished(entry, lambda *_: 1.0)
    assert [(c.rate, c.seed) for c in found] == [(0.02, seed) for seed in SEEDS]
    assert not row(entry, found).trials


def test_runs_of_another_length_batch_or_setting_do_not_count():
    found = finished(ENTRY, bowl(0.01))
    for change in ({"steps": 80}, {"batch": 4}, {"setting": "own"}):
        other = Entry(**{**ENTRY.__dict__, **change})
        assert expected(other, found) == 10


def test_rates_that_another_study_tried_do_not_count():
    found = finished(ENTRY, bowl(0.01))
    found[ENTRY.config(0.08, TUNING)] = result(0.0)
    assert due(ENTRY, found) is None
    assert best_rate(ENTRY, found) == 0.01
    assert 0.08 not in row(ENTRY, found).trials


def test_expected_counts_down():
    found, left = {}, []
    while config := due(ENTRY, found):
        left.append(expected(ENTRY, found))
        found[config] = result(bowl(0.01)(config.rate, 0))
    assert left == list(range(10, 0, -1))
    assert expected(ENTRY, found) == 0


def test_row_is_made_of_the_confirming_runs_only():
    noise = dict(zip(SEEDS, [0.1, -0.1, 0.3, 0.0, -0.2], strict=True))
    loss = lambda rate, seed: bowl(0.01)(rate, 0) + noise.get(seed, -1)
    found = finished(ENTRY, loss)
    got = row(ENTRY, found)
    assert got.losses == tuple(1 + n for n in noise.values())
    assert got.loss == pytest.approx(1.02)
    assert got.spread == pytest.approx(np.std([*noise.values()], ddof=1))
    assert (len(got.trials), got.failed, got.rate) == (5, 0, 0.01)
    assert got.trials[0.02] == pytest.approx(2 - 1 + noise.get(TUNING, 0))
    del found[ENTRY.config(0.01, 3)]
    assert row(ENTRY, found) is None


def test_differences_are_paired():
    shared = [3.0, 1.0, 2.0, 5.0, 4.0]  # Of the seeds: far larger than the difference.
    gains = np.array([0.10, 0.12, 0.08, 0.11, 0.09])
    tuned = bowl(0.01)
    ours = finished(
        ENTRY, lambda rate, s: tuned(rate, s) if s == TUNING else shared[s] - gains[s]
    )
    theirs = finished(
        ADAMW, lambda rate, s: tuned(rate, s) if s == TUNING else shared[s]
    )
    mean, half = difference(row(ENTRY, ours), row(ADAMW, theirs))
    assert mean == pytest.approx(-0.1)
    low, high = stats.ttest_1samp(-gains, 0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_rows_of_other_seeds_are_not_paired():
    fresh = dataclasses.replace(ENTRY, seeds=FRESH)
    found = finished(ENTRY, bowl(0.01)) | finished(fresh, bowl(0.01))
    with pytest.raises(ValueError, match="Rows of the same seeds are paired"):
        difference(row(ENTRY, found), row(fresh, found))


def test_a_failed_run_is_counted_and_has_no_difference():
    fails = lambda rate, seed: None if seed == 2 else bowl(0.01)(rate, seed)
    found = finished(ENTRY, fails) | finished(ADAMW, bowl(0.01))
    got, adamw = row(ENTRY, found), row(ADAMW, found)
    assert got.failed == 1
    assert got.loss == math.inf
    assert difference(got, adamw) == (math.inf, math.inf)
    text = table.table_of([got, adamw], 2)
    assert "| `muon` | matched | 0.01 | - | - | - |" in text
    assert "1 of 10" in text


def with_curve(entry, losses):
    curve = [[10 * i, loss] for i, loss in enumerate(losses)]
    found = finished(entry, bowl(0.01))
    found = {c: result(r.loss, curve) for c, r in found.items()}
    return row(entry, found)


def test_steps_are_read_between_the_points_of_a_curve():
    one = with_curve(ENTRY, [5.0, 3.0, 2.0, 2.5, 1.0])
    assert steps_to(one, 4.0) == pytest.approx(5.0)
    assert steps_to(one, 2.25) == pytest.approx(17.5)
    assert steps_to(one, 1.0) == 40
    assert steps_to(one, 0.99) == math.inf


def test_speedup_is_two_for_a_curve_twice_as_fast():
    slow = with_curve(ADAMW, [5.0, 4.5, 4.0, 3.5, 3.0])
    fast = with_curve(ENTRY, [5.0, 4.0, 3.0, 2.0, 1.0])
    np.testing.assert_allclose(speedups(fast, slow), 2.0)
    np.testing.assert_allclose(speedups(slow, slow), 1.0)
    np.testing.assert_allclose(speedups(slow, fast), [0.5, 0.5, 0, 0])


def test_results_come_back_and_a_cut_line_is_removed(tmp_path):
    path = tmp_path / "new" / "bench.jsonl"
    results.prepare(path)
    config = ENTRY.config(0.01, 0)
    results.append(config, result(None), path, "run books")
    results.append(ENTRY.config(0.02, 0), result(1.25), path, "run books")
    whole = path.read_text()
    path.write_text(whole + whole[:50])  # Killed within a write.
    assert results.read(path) == {
        config: result(None),
        ENTRY.config(0.02, 0): result(1.25),
    }
    results.prepare(path)
    assert path.read_text() == whole
    where = json.loads(whole.splitlines()[0])["where"]
    assert where["command"] == "run books"
    assert "jax " in where["versions"]
    assert where["machine"]


def test_a_damaged_line_is_named(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    path.write_text('{"config": {}}\n')
    with pytest.raises(UserError, match=r"Line 1 of .*bench.jsonl is damaged"):
        results.read(path)
    assert cli.main(["table", "books", "--results", str(path)]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.broad
def test_tables_of_the_readers_are_those_of_the_results():
    found = results.read()
    for path in table.PAGES:
        assert table.replaced(path.read_text(), found) == path.read_text(), (
            f"{path.name} differs from the results: "
            "python -m examples.study bench table --write"
        )
    for study in plot.PICTURED:
        assert plot.is_current(study, found) or not plot.finished(study, found), study


@pytest.mark.broad
def test_a_picture_is_drawn_anew_when_its_runs_change(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "PATH", tmp_path / "bench.jsonl")
    monkeypatch.setattr(table, "PAGES", ())
    monkeypatch.setitem(STUDIES, "books", lambda _: [ADAMW, ENTRY])
    found = finished(ADAMW, bowl(0.01))
    table.write(found)
    assert not plot.file_of("books").exists()  # Muon's runs are missing.
    found |= finished(ENTRY, bowl(0.02))
    table.write(found)
    assert plot.is_current("books", found)
    assert not plot.is_current("books", found | finished(ADAMW, bowl(0.04)))


def test_make_compare_has_the_rates_of_the_study():
    """Each method at its best rate on the two books."""
    makefile = (pathlib.Path(__file__).parents[3] / "Makefile").read_text()
    (compared,) = re.findall("^COMPARED := (.*)$", makefile, re.MULTILINE)
    found = results.read()
    best = {n: best_rate(comparison.entry("books", n), found) for n in comparison.FIRST}
    # The study's `muon` is not the default of `om.muon`.
    shown = {"muon": "muon:scaling=max"}
    assert compared == ",".join(f"{shown.get(n, n)}@{r:g}" for n, r in best.items())


READY = "anchor", *MAIN, "adamw_rates", "tuned_books", "tuned_digits", "ablations"
PART = "coefficients"
GROWING = "search", "reversals", "levels"  # By what others have found so far.


@pytest.mark.parametrize("study", READY)
def test_every_study_has_adamw_and_no_row_twice(study):
    entries = STUDIES[study]({})
    assert len(set(entries)) == len(entries)
    assert any(entry.method == "adamw" for entry in entries)


def test_coefficients_are_a_part_of_the_ablations():
    part, whole = ({e.method for e in STUDIES[x]({})} for x in (PART, "ablations"))
    assert "muon" in part < whole


@pytest.mark.parametrize("study", sorted(set(STUDIES) - {*READY, *GROWING, PART}))
def test_a_study_of_the_best_methods_waits_for_them(study):
    with pytest.raises(UserError, match="finish that one first: python -m examples"):
        STUDIES[study]({})
    assert "waits for the end of another one" in table.table(study, {})


@pytest.fixture(scope="module")
def main_results():
    """The main studies, finished: every method has its own best loss and rate."""
    found = {}
    for study in MAIN:
        for place, entry in enumerate(STUDIES[study]({})):
            loss = bowl(entry.rate * 2)
            place = (8 * place) % 67  # AdamW, the first, stays the best.
            shifted = lambda rate, seed, p=place: loss(rate, seed) + p  # noqa: B023
            found |= finished(entry, shifted)
    return found


@pytest.mark.parametrize(
    ("condition", "task", "steps", "batch"),
    [
        ("shorter", "books", 100, 16),
        ("longer", "books", 1600, 16),
        ("smaller_batch", "books", 400, 4),
        ("larger_batch", "books", 400, 64),
        ("longer_digits", "digits", 1200, 32),
    ],
)
def test_conditions_take_the_best_six_and_muon(
    condition, task, steps, batch, main_results
):
    better = {}
    for r in ranked(STUDIES[task]({}), main_results):
        better.setdefault(r.entry.method, r)
    assert "muon" not in list(better)[:7]
    rows = [*list(better.values())[:7], better["muon"]]
    best = [(r.entry.method, r.entry.setting) for r in rows]
    assert {setting for _, setting in best} == {"matched", "own"}
    entries = STUDIES[condition](main_results)
    assert [(e.method, e.setting) for e in entries] == best
    assert {(e.task, e.steps, e.batch) for e in entries} == {(task, steps, batch)}
    assert [e.rate for e in entries] == [r.rate for r in rows]
    assert not {seed for e in entries for seed in e.seeds} & {TUNING, *SEEDS}


def test_the_summary_has_the_five_papers_on_all_tasks(main_results, capsys, tmp_path):
    measured = {
        (task, "poet"): times.Time(task, "poet", 30.0, relative)
        for task, relative in (("books", 1.5), ("digits", 1.2))
    }
    two = {c: r for c, r in main_results.items() if c.task != "digits"}
    text = summary_table.report(two, measured)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines()[2:]}
    assert list(rows)[:2] == ["`muoneq`", "`aro`"]
    assert len(rows) == 9
    place = [e.method for e in STUDIES["books"]({})].index("poet") * 8 % 67
    cells = [cell.strip() for cell in rows["`poet`"].split("|")]
    # Both at their best rate: the bowl is 1 above its bottom at seed rates.
    assert cells[2] == cells[3] == f"{place:+.3f} ± 0.000"
    assert cells[4:7] == ["", "", ""]  # The tuned AdamW has not run.
    assert cells[7] == "1.35"
    path = tmp_path / "bench.jsonl"
    assert cli.main(["table", "summary", "--results", str(path)]) == 0
    assert "| `adamw` |  |" in capsys.readouterr().out


def test_no_study_waits_for_a_method_without_runs(main_results, monkeypatch, tmp_path):
    """But `bench run` does its runs."""
    path = tmp_path / "bench.jsonl"
    monkeypatch.setattr(comparison.committed, "PATH", path)
    assert not comparison.not_run.__wrapped__()  # A study that begins has none yet.
    path.write_text('{"config": {"task": "books", "method": "muon", "setting"\n')
    assert comparison.not_run.__wrapped__() == {*comparison.NAMES} - {"muon"}
    monkeypatch.undo()
    new = comparison.not_run() | {"muon2"}
    monkeypatch.setattr(comparison, "not_run", lambda: new)
    found = {c: r for c, r in main_results.items() if c.method != "muon2"}
    assert len(comparison.best("books", 6, found)) == 7
    assert "muon2" not in {e.method for e in STUDIES["books"]({})}
    assert "muon2" not in table.table("books", found)
    unfinished = cli._unfinished("books", tmp_path / "none.jsonl")
    assert "muon2" in {e.method for e in unfinished}


@pytest.mark.broad
def test_overall_is_the_share_of_the_gap_to_the_best_method():
    found = {}
    for task in MAIN:
        for entry in STUDIES[task]({}):
            loss = {"adamw": 3.0, "muoneq": 2.0, "alice": 2.75, "poet": 4.0}.get(
                entry.method, 2.5
            )
            if (entry.method, task) == ("sumo", "digits"):
                loss = math.inf
            if (entry.method, entry.setting) == ("alice", "own"):
                loss = 2.9  # The other setting is better.
            found |= finished(entry, lambda _rate, seed, loss=loss: loss + seed % 5)
    assert "waits for the end" in overall_table.report(
        {c: r for c, r in found.items() if c.task != "books"}
    )
    rows = overall_table.report(found).splitlines()[2:]
    assert rows[0] == "| `muoneq` | 100% | 100% | 100% | 100% |"
    assert rows[-1] == "| `sumo` | 50% | 50% | - | - |"
    assert rows[-2] == "| `poet` | -100% | -100% | -100% | -100% |"
    assert rows[-3] == "| `adamw` | 0% | 0% | 0% | 0% |"
    assert rows[-4] == "| `alice` | 25% | 25% | 25% | 25% |"


def test_cost_is_the_time_of_both_processes_halved(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    runs = finished(ENTRY, bowl(0.01))  # Ten runs, of one second each.
    for number, (config, one) in enumerate(runs.items()):
        study, seconds = ("digits", 7200.0) if number < 2 else ("books", 1.0)
        one = dataclasses.replace(one, seconds=seconds)
        results.append(config, one, path, f"python -m examples.study bench run {study}")
    assert cli.main(["table", "cost", "--results", str(path)]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows == ["| digits | 2 | 2.0 |", "| books | 8 | 0.0 |", "| all | 10 | 2.0 |"]


def test_the_larger_model_has_the_best_ten(main_results):
    entries = STUDIES["large"](main_results)
    assert len(entries) == 11
    assert {e.task for e in entries} == {"large"}


@pytest.mark.parametrize("options", ["", ":b1=0.8"])
def test_only_the_larger_model_takes_mousses_roots_by_eigenvectors(options):
    there = comparison.entry("books", f"mousse{options}")
    found = finished(there, bowl(there.rate))
    assert (
        comparison.moved(there, found, "large").method == f"mousse{options}:method=eigh"
    )
    assert comparison.moved(there, found, "books", steps=4).method == f"mousse{options}"


def test_picture(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    with pytest.raises(UserError, match="no finished runs of AdamW"):
        plot.draw("anchor", {}, tmp_path / "anchor.png")
    with pytest.raises(UserError, match="no finished runs of AdamW"):
        plot.draw("search", {}, tmp_path / "search.png")
    for entry in STUDIES["anchor"]({}):
        for config, one in finished(entry, bowl(entry.rate)).items():
            results.append(config, one, path, "run")
    assert (
        cli.main(["plot", "anchor", "--results", str(path), "--out", str(tmp_path)])
        == 0
    )
    assert (tmp_path / "anchor.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) in capsys.readouterr().out


def test_mistakes_get_one_line(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    assert cli.main(["run", "anchor", "--processes", "0"]) == 2
    assert "--processes must be positive" in capsys.readouterr().err
    path.mkdir()
    assert cli.main(["table", "anchor", "--results", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit):
        cli.main(["table", "nope"])
    assert "choose from anchor" in capsys.readouterr().err


def test_ranked_is_by_loss():
    worse = lambda rate, _: bowl(0.01)(rate, _) + 0.5
    found = finished(ENTRY, worse) | finished(ADAMW, bowl(0.01))
    assert [r.entry for r in ranked([ENTRY, ADAMW], found)] == [ADAMW, ENTRY]
    assert Config(**ENTRY.config(0.01, 0).__dict__) in found
