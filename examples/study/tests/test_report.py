"""Pages of runs, comparisons and studies made by hand: valid and self-contained."""

import dataclasses
import html.parser
import json
import math
import re

import numpy as np
import pytest

from examples.pretrain.cli import main as pretrain
from examples.pretrain.config import SIZES
from examples.study.bench import results, table
from examples.study.bench.search import due
from examples.study.bench.statistics import ranked, reference
from examples.study.bench.studies import STUDIES
from examples.study.compare.comparison import Comparison, write_results
from examples.study.compare.protocol import Curve, summarize
from examples.study.report import layers, section, svg
from examples.study.report.cli import main
from examples.study.tests.test_bench import result

STEPS = (10, 20, 30, 40)
PLAN = Comparison(
    model=SIZES["tiny"],
    optimizers=("adamw",),
    learning_rates=(0.01,),
    sweep="adamw",
    steps=40,
    batch=4,
    accumulate=1,
    data="books",
    tokenizer=None,
    seeds=1,
    eval_every=10,
    validation=8,
    checksum="-",
)


class Page(html.parser.HTMLParser):
    """The tables and texts of a page; every tag must be closed where it was opened."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text()
        self.open, self.tables, self.titles, self.seen = [], [], [], []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.seen.append((name, dict(attributes)))
        if name == "meta":
            return
        self.open.append(name)
        if name == "table":
            self.tables.append([])
        if name == "tr":
            self.tables[-1].append([])
        if name in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if {"td", "th"} & {*self.open}:
            self.tables[-1][-1][-1] += data
        if self.open and self.open[-1] == "title":
            self.titles.append(data)

    def rows(self, heading="loss"):
        """Rows of the first table with a heading, as dicts, by the first cell."""
        found = next(t for t in self.tables if heading in t[0])
        return {row[0]: dict(zip(found[0], row, strict=True)) for row in found[1:]}

    def lines(self, *classes):
        """The paths of charts with these classes."""
        chosen = [x["d"] for _, x in self.seen if x.get("class") == " ".join(classes)]
        return [d for d in chosen if d != "M2 6H26"]  # Of the legend.


def curve(name, losses, seed=0, rate=0.01, ms=5.25, size=2048):
    return Curve(name, rate, seed, STEPS[: len(losses)], tuple(losses), ms, size)


def comparison(directory, curves, **changes):
    directory.mkdir()
    plan = dataclasses.replace(PLAN, **changes)
    write_results(directory / "results.json", plan, curves, summarize(curves))
    return str(directory)


def a_run(directory, losses=(3.0, 2.5, 2.0, 1.5), monitor=(), lost=None, **changes):
    """A directory like those of `train`."""
    directory.mkdir(parents=True)
    settings = {"model": dataclasses.asdict(SIZES["tiny"]), "optimizer": "adamw"}
    settings |= {"learning_rate": 0.01, "steps": 40, "batch": 4, "seed": 0}
    (directory / "run.json").write_text(json.dumps(settings | changes))
    rows = [
        {"step": s, "loss": x + 0.25, "tokens_per_second": 512.0, "validation_loss": x}
        for s, x in zip(STEPS, losses, strict=False)
    ]
    rows += [{"step": lost, "loss": None}] if lost else []
    start = {"step": 0, "versions": "jax 1.2.3", "state_bytes": 4096}
    for name, lines in {"metrics": rows, "monitor": monitor, "starts": [start]}.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{name}.jsonl").write_text(text)
    return str(directory)


def page(tmp_path, *arguments):
    out = tmp_path / "pages" / "report.html"
    assert main([*arguments, "--out", str(out)]) == 0
    return Page(out)


def assert_self_contained(page):
    for word in ("http://", "https://", "src=", "href=", "url(", "@import", "<script"):
        assert word not in page.source
    assert ("meta", "width=device-width, initial-scale=1") in [
        (name, x.get("content")) for name, x in page.seen
    ]
    assert "prefers-color-scheme: dark" in page.source
    assert not [x for _, x in page.seen if "id" in x]


def test_comparison_has_the_numbers_of_its_file(tmp_path, capsys):
    curves = [
        curve("adamw", (3.0, 2.5, 2.25, 2.0), ms=4.5),
        curve("adamw", (3.0, 2.5, 2.25, 2.1), seed=1),
        curve("muon", (2.5, 2.0, 1.75, 1.5), ms=7.75, size=3 * 2**20),
        curve("muon", (2.5, 2.0, 1.75, 1.7), seed=1, ms=7.75),
        curve("lion", (math.nan,)),
        curve("lion", (math.nan,), seed=1),
    ]
    got = page(tmp_path, comparison(tmp_path / "both", curves, seeds=2))
    assert_self_contained(got)
    rows = got.rows()
    assert [*rows] == ["muon", "adamw", "lion"]
    muon, adamw, lion = rows.values()
    assert (muon["loss"], muon["spread"]) == ("1.6000", "0.1000")
    assert float(muon["difference"]) == pytest.approx(1.6 - 2.05)
    assert muon["speedup"] == "2.00"
    assert (muon["ms"], muon["state"], muon["rates x seeds"]) == (
        *("7.8", "3.0 MiB"),
        "1 x 2",
    )
    assert (adamw["difference"], adamw["loss"]) == ("-", "2.0500")
    assert (lion["loss"], lion["speedup"], lion["spread"]) == ("diverged", "-", "-")
    for heading in muon:
        assert heading == "optimizer" or f"<dt>{heading}</dt>" in got.source
    assert "2 seeds, warm-up over 10%" in got.source  # The notes of the text table.
    assert "jax 0." in got.source
    assert "model.embed" in got.source
    assert capsys.readouterr().out == f"report in {tmp_path / 'pages/report.html'}\n"


def test_bands_are_drawn_for_several_seeds_only(tmp_path):
    one = [curve("adamw", (3.0, 2.5, 2.0, 1.5))]
    assert not page(tmp_path, comparison(tmp_path / "a", one)).lines("band reference")
    two = [*one, curve("adamw", (3.5, 2.5, 2.0, 1.75), seed=1)]
    got = page(tmp_path, comparison(tmp_path / "b", two, seeds=2))
    assert len(got.lines("band reference")) == 2  # Whole and second half.
    assert "smallest to the largest" in got.source
    band = section.banded((1, 2), [2.0, 4.0], [[1, 5], [3, 4], [2, 3]])
    assert [list(band.low), list(band.high)] == [[1, 3], [3, 5]]


def test_the_best_ten_and_adamw_stand_out(tmp_path):
    others = [curve(f"m{i}", (3.0, 2.5, 2.0, 1 + i / 100)) for i in range(14)]
    got = page(
        tmp_path, comparison(tmp_path / "many", [curve("adamw", (3, 3, 3, 3)), *others])
    )
    coloured = [got.lines(f"line c{i}{d}") for i in range(5) for d in ("", " dashed")]
    assert [len(lines) for lines in coloured] == [2] * 10
    assert len(got.lines("line reference")) == 2
    assert len(got.lines("line other")) == 8
    assert "4 more" in got.source
    assert len(got.rows()) == 15


def test_several_comparisons_have_an_overview(tmp_path):
    adamw = curve("adamw", (3.0, 2.5, 2.25, 2.0))
    a = comparison(tmp_path / "a", [adamw, curve("muon", (2.5, 2.0, 1.5, 1.0))])
    b = comparison(tmp_path / "b", [adamw, curve("lion", (3.0, 2.5, 2.25, 2.25))])
    got = page(tmp_path, a, b)
    assert got.rows(a)["muon"] == {
        "optimizer": "muon",
        a: "-1.0000, 2.00",
        b: "not run",
    }
    assert got.rows(b)["lion"][b] == "+0.2500, -"
    assert len(got.tables) == 3


def test_names_are_escaped(tmp_path):
    evil = "<script>x</script>&\"'"
    curves = [curve("adamw", (3, 3, 3, 3)), curve(evil, (2, 2, 2, 2))]
    got = page(tmp_path, comparison(tmp_path / "a&b", curves, data="<i>books"))
    assert_self_contained(got)
    assert evil in got.rows()
    assert {"script", "i"}.isdisjoint(name for name, _ in got.seen)
    assert any("<i>books" in title for title in got.titles)


def test_study_has_the_numbers_of_its_table(tmp_path):
    found = {}
    for entry in STUDIES["books"]({}):
        if entry.method in ("adamw", "muon", "racs"):
            rates = np.random.default_rng(len(found))
            while config := due(entry, found):
                loss = (
                    1 + 0.1 * rates.random() + math.log2(config.rate / entry.rate) ** 2
                )
                found[config] = result(None if entry.method == "racs" else loss)
    path = tmp_path / "bench.jsonl"
    for config, one in found.items():
        results.append(config, one, path, "run")
    got = page(tmp_path, "bench:books", "--results", str(path))
    assert_self_contained(got)
    rows = ranked(STUDIES["books"](found), found)
    adamw = reference(rows)
    shown = next(t for t in got.tables if "loss" in t[0])[1:]
    assert len(shown) == len(rows) >= 4
    for row, cells in zip(rows, shown, strict=True):
        _, size, rate, loss, difference, speedup, state, failed = table.cells(
            row, adamw
        )
        loss, _, spread = loss.partition(" ± ")
        own = " (own)" if size == "own" else ""
        assert cells == [
            row.entry.method + own,
            *(loss if spread else "failed", spread or "-", difference, speedup),
            *(state, size, rate, failed),
        ]
    assert f"of {len(STUDIES['books']({}))} rows do not have" in got.source
    assert "jax 0." in got.source


def test_run_has_its_losses_settings_and_versions(tmp_path):
    got = page(tmp_path, a_run(tmp_path / "run"))
    assert_self_contained(got)
    (row,) = got.rows().values()
    assert (row["loss"], row["steps"], row["state"]) == (
        "1.5000",
        "40 of 40",
        "4.0 KiB",
    )
    assert float(row["ms"]) == 1e3 * 4 * 64 / 512
    assert "jax 1.2.3" in got.source
    assert "Layers of" not in got.source
    titles = re.findall("<figcaption>(.*?)</figcaption>", got.source)
    assert titles[:1] == ["Validation loss (nats per token)"]
    assert "Training loss (nats per token)" in titles


def test_runs_that_differ_in_their_seed_are_one_row(tmp_path):
    paths = [
        a_run(tmp_path / f"{name}{seed}", losses, optimizer=name, seed=seed)
        for name, losses in {"adamw": (4, 3, 2.5, 2), "muon": (3, 2, 1.75, 1.5)}.items()
        for seed in (0, 1)
    ]
    rows = page(tmp_path, *paths).rows()
    assert [*rows] == ["muon", "adamw"]
    assert rows["muon"]["rates x seeds"] == "1 x 2"
    assert rows["muon"]["speedup"] == "2.00"
    assert rows["muon"]["difference"] == "-0.5000"


def test_runs_of_another_length_are_not_compared_with_adamw(tmp_path):
    paths = [
        a_run(tmp_path / "a", (4, 3, 2.5, 2)),
        a_run(tmp_path / "b", (3, 2), optimizer="muon", steps=20),
    ]
    got = page(tmp_path, *paths)
    assert got.rows()["muon"]["difference"] == "-"
    assert "The runs also differ in steps" in got.source


def test_the_same_optimizer_at_two_rates_gives_two_rows(tmp_path):
    paths = [a_run(tmp_path / f"{r}", learning_rate=r) for r in (0.01, 0.002)]
    assert {*page(tmp_path, *paths).rows()} == {"adamw @ 0.01", "adamw @ 0.002"}


def test_a_single_run_has_no_dashes(tmp_path):
    """Columns that compare it with others are left out, with what explains them."""
    got = page(tmp_path, a_run(tmp_path / "a", optimizer="muon"))
    (row,) = got.rows().values()
    assert "-" not in row.values()
    assert {"loss", "steps", "learning rate"} <= set(row)
    assert "<dt>speedup</dt>" not in got.source
    assert "The table scrolls sideways." in got.source


def test_diverged_and_stopped_runs_say_so(tmp_path):
    paths = [
        a_run(tmp_path / "a", (3.0, 2.5), lost=25),
        a_run(tmp_path / "b", (3.0, 2.5), optimizer="muon"),
        a_run(tmp_path / "c", (), lost=5, optimizer="racs"),
    ]
    rows = page(tmp_path, *paths, f"{tmp_path}/c/").rows()
    assert (rows["racs"]["loss"], rows["racs"]["steps"]) == ("diverged", "5 of 40")
    assert (rows["adamw"]["loss"], rows["adamw"]["steps"]) == ("diverged", "25 of 40")
    assert (rows["muon"]["loss"], rows["muon"]["steps"]) == ("2.5000", "20 of 40")
    assert rows["muon"]["speedup"] == rows["muon"]["difference"] == "-"


def test_runs_that_stopped_are_not_compared_with_finished_ones(tmp_path):
    paths = [a_run(tmp_path / "a"), a_run(tmp_path / "b", (1.0,), optimizer="muon")]
    row = page(tmp_path, *paths).rows()["muon"]
    assert (row["loss"], row["steps"]) == ("1.0000", "10 of 40")
    assert row["speedup"] == row["difference"] == "-"


def records(count, stacked):
    """Two layers, in one leaf or in two."""
    rows = []
    for step in range(1, count + 1):
        each = [
            {"update_rms": 0.1 / step, "update_cosine": 0.5 if step > 1 else None},
            {"update_rms": 0.2 / step, "update_cosine": -0.5},
        ]
        spectrum = [[2.0, 1.0, 0.5], [4.0, 2.0, 1.0]]
        path = "layers/attn/q/kernel"
        if stacked:
            measures = {path: {k: [x[k] for x in each] for k in each[0]}}
            spectra = {path: spectrum}
        else:
            paths = [path.replace("layers", f"layers/{i}") for i in range(2)]
            measures = dict(zip(paths, each, strict=True))
            spectra = dict(zip(paths, spectrum, strict=True))
        measures = {"norm/scale": {"update_rms": 0.5}, **measures}
        rows.append({"step": step, "measures": measures})
        if step % 10 == 1:
            rows[-1]["spectra"] = spectra
    return rows


@pytest.mark.parametrize("stacked", [False, True])
def test_monitored_run_has_charts_of_layers(tmp_path, stacked):
    got = page(tmp_path, a_run(tmp_path / "run", monitor=records(21, stacked)))
    assert_self_contained(got)
    for part in ("Root mean square of updates", "Angle between", "Singular values"):
        assert part in got.source
    titles = re.findall("<figcaption>(.*?)</figcaption>", got.source)
    assert titles[-5:] == [
        *("norm", "attn/q", "attn/q"),
        *("attn/q, layer 0", "attn/q, layer 1"),
    ]
    assert got.titles.count("layer 0") == got.titles.count("layer 1") == 2
    assert [got.titles.count(f"step {step}") for step in (1, 11, 21)] == [2, 2, 2]


def test_spectra_that_are_not_finite_are_left_out():
    rows = records(11, stacked=True)
    rows[-1]["spectra"] = {"layers/attn/q/kernel": [[None] * 3, [4.0, 2.0, 1.0]]}
    drawn = layers.spectra(rows)
    assert drawn.count("<title>step 1</title>") == 2
    assert drawn.count("<title>step 11</title>") == 1


def test_angles_are_of_the_cosines():
    angles = layers.statistics(records(3, stacked=False)).split("<h4>")[2]
    assert angles.startswith("Angle between")
    ticks = [float(x) for x in re.findall('class="beside">(.*?)<', angles)]
    assert 59 <= min(ticks) < 80 < 100 <= max(ticks) <= 121
    lines = re.findall(r'd="(M[^"]*)" fill="none"', angles)
    assert [line.count("L") for line in lines] == [1, 2]  # The first value is null.


def test_places_of_weights():
    assert layers.place("layers/11/mlp/up/kernel") == ("mlp/up", 11)
    assert layers.place("layers/mlp/up/kernel") == ("mlp/up", 0)
    assert layers.place("embed/embedding") == ("embed", 0)
    assert layers.place("model/layers/2/norm/scale") == ("norm", 2)


def test_lines_are_where_their_values_are():
    chart = svg.Chart((0, 10), (1.0, 100.0), log=True, size=(162, 148))
    chart.line([0, 5, 10], [10.0, math.nan, 100.0], "name")
    left, right = re.findall(r'd="M(\S+) (\S+)h0"', chart.drawn("label"))
    assert (float(left[0]), float(right[0])) == (svg.LEFT, 162 - svg.RIGHT)
    middle = (svg.TOP + 148 - svg.BOTTOM) / 2
    assert float(left[1]) == pytest.approx(middle, abs=0.1)
    assert svg.TOP < float(right[1]) < svg.TOP + 0.05 * 100


@pytest.mark.parametrize("pair", [(0, 60), (0.9999, 1.0001), (-3, 5), (2, 2)])
def test_there_are_ticks_and_they_are_inside(pair):
    drawn = svg.Chart((0, 400), pair).drawn("label")
    assert 2 <= drawn.count('class="beside"') <= 8
    for y in re.findall(r'y="([\d.]+)" class="beside"', drawn):
        assert svg.TOP <= float(y) - 4 <= 290 - svg.BOTTOM


def mistake(capsys, *arguments):
    assert main([*arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


def test_mistakes_get_one_line(tmp_path, capsys):
    empty, run, both = tmp_path / "empty", tmp_path / "run", tmp_path / "both"
    empty.mkdir()
    a_run(run)
    comparison(both, [curve("adamw", (3.0, 2.5, 2.0, 1.5))])
    assert "no directory missing" in mistake(capsys, "missing")
    assert "neither a run nor a comparison" in mistake(capsys, str(empty))
    line = mistake(capsys, str(run), str(both))
    assert f"{run} is a run and {both} is a comparison" in line
    assert "a study" in mistake(capsys, str(run), "bench:books")
    assert "required" in mistake(capsys)
    assert "no study 'bokks'" in mistake(capsys, "bench:bokks")
    assert "no study 'ablations'" in mistake(capsys, "bench:ablations")
    nothing = ("--results", str(tmp_path / "none.jsonl"))
    assert "examples.study bench run books" in mistake(capsys, "bench:books", *nothing)
    (run / "metrics.jsonl").write_text("")
    assert "no validation loss yet" in mistake(capsys, str(run))
    (run / "run.json").write_text('{"optimizers": []}')
    assert "is not finished" in mistake(capsys, str(run))
    (both / "results.json").write_text('{"plan": 1}')
    assert "damaged" in mistake(capsys, str(both))
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_page_of_a_real_monitored_run(tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(97, 123)) * 40)
    small = ("--context", "8", "--batch", "4", "--steps", "4", "--validation", "4")
    out = str(tmp_path / "run")
    every = ("--eval-every", "2", "--log-every", "1", "--monitor")
    assert pretrain(["--data", str(text), *small, *every, "--out", out]) == 0
    got = page(tmp_path, out)
    assert_self_contained(got)
    (row,) = got.rows().values()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert float(row["loss"]) == round(json.loads(lines[-1])["validation_loss"], 4)
    assert row["state"] not in ("-", "0 B")
    assert "attn/q, layer 1" in got.source
    assert "optax" in got.source
