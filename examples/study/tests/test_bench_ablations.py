"""The ablations: what their rows are, and how a paper's order is judged."""

import math

import jax
import numpy as np
import pytest

from examples.study.bench import orders
from examples.study.bench.ablation_table import compared, report
from examples.study.bench.ablations import ABLATIONS, entries
from examples.study.bench.ablations.form import Ablation, Variant
from examples.study.bench.config import Result
from examples.study.bench.methods import find
from examples.study.bench.search import (
    FEW_TRIALS,
    FRESH,
    TRIALS,
    TUNING,
    Entry,
    Results,
    due,
)
from examples.study.bench.statistics import row
from examples.study.bench.tasks import TASKS

VARIANTS = [v for ablation in ABLATIONS for v in ablation.variants]


def finished(variant: Variant, losses) -> Results:
    """All runs of a variant: a bowl over the rates, and these losses by seed."""
    return finished_entry(variant.entry, losses)


def finished_entry(entry: Entry, losses) -> Results:
    found = {}
    while config := due(entry, found):
        bowl = 1 + math.log2(config.rate / entry.rate) ** 2
        loss = bowl if config.seed == TUNING else losses[config.seed % 5]
        found[config] = Result(loss, [[0, 5.0], [400, 1.0]], 2.0, 2048, 1.0)
    return found


BASE = np.array([1.0, 1.3, 0.8, 1.1, 0.9])
NOISE = np.array([0.01, -0.02, 0.02, -0.01, 0.0])


@pytest.mark.parametrize(
    ("shift", "verdict", "by"),
    [
        (0.1, "yes", "+0.1000 ± 0.0196"),
        (-0.1, "no", "-0.1000 ± 0.0196"),
        (0.01, "level", "+0.0100 ± 0.0196"),
    ],
)
def test_the_order_is_judged_by_the_paired_interval(shift, verdict, by):
    better, worse = Variant("muoneq"), Variant("muon", better="muoneq")
    found = finished(better, BASE) | finished(worse, BASE + NOISE + shift)
    got = compared(row(worse.entry, found), row(better.entry, found))
    assert got == (by, verdict)


def test_a_method_that_fails_is_worse():
    better, worse = Variant("muoneq"), Variant("muon", better="muoneq")
    found = finished(better, BASE) | finished(worse, [None, *BASE[1:]])
    judged = lambda: compared(row(worse.entry, found), row(better.entry, found))
    assert judged() == ("failed", "yes")
    found = finished(better, [None, *BASE[1:]]) | finished(worse, BASE)
    assert judged() == ("failed", "no")
    found |= finished(worse, [*BASE[:4], None])
    assert judged() == ("failed", "level")


def test_the_report_has_every_variant_and_the_losses_at_all_rates():
    muoneq, muon = (Variant(name, trials=TRIALS) for name in ("muoneq", "muon"))
    found = finished(muoneq, BASE) | finished(muon, BASE + 0.1)
    text = report(found)
    for variant in VARIANTS:
        assert f"| `{variant.method}` |" in text
    assert "| `muon` | 25.23 | 1.1200 ± 0.1924 | `mousse` |  |  |" in text
    assert "| 0.002 | 0.004 | 0.008 | 0.016 | 0.032 |" in text
    assert "| `muoneq` | 5.000 | 2.000 | 1.000 | 2.000 | 5.000 |" in text


def test_a_comparison_without_a_paper_has_no_columns_for_one():
    parts = {variant.method: variant for variant in VARIANTS}
    plain, changed = parts["adamw"], parts["mars_adamw:gamma=0"]
    text = report(finished(plain, BASE) | finished(changed, BASE + NOISE + 0.1))
    assert "**Parts of MARS**\n\n| method | loss | against | difference |" in text
    cells = "| `mars_adamw:gamma=0` | 1.1200 ± 0.1782 | `adamw` | +0.1000 ± 0.0196 |"
    assert cells in text


def test_a_reversed_order_runs_again_for_longer():
    methods = {variant.method: variant for variant in VARIANTS}
    rowcol, col = methods["muoneq:mode=rowcol"], methods["muoneq:mode=col"]
    found = finished(methods["muoneq"], BASE)
    found |= finished(rowcol, BASE + NOISE - 0.1)  # The paper has it behind `muoneq`.
    found |= finished(methods["mousse"], BASE) | finished(col, BASE + NOISE + 0.1)
    (one,) = orders.repeated("no", found)
    assert (one.worse, one.better.method) == (rowcol, "muoneq")
    entries = orders.entries("no", found)
    assert [e.method for e in entries] == [rowcol.method, "muoneq"]
    assert {e.steps for e in entries} == {4 * rowcol.entry.steps}
    assert {e.seeds for e in entries} == {FRESH}
    cells = "| `muoneq:mode=rowcol` | `muoneq` | +0.0024 | -0.1000 ± 0.0196 |"
    assert f"{cells}  |  |" in orders.report("no", found)
    worse, better = one.longer(found)
    found |= finished_entry(worse, BASE + NOISE + 0.2) | finished_entry(better, BASE)
    assert f"{cells} +0.2000 ± 0.0196 | yes |" in orders.report("no", found)
    assert orders.report("no", {}) == "There is none so far."


def test_a_level_order_runs_again_if_the_papers_gap_is_beyond_the_interval():
    methods = {variant.method: variant for variant in VARIANTS}
    found = finished(methods["racs"], BASE)  # Without averages "much worse".
    found |= finished(methods["racs:b1=0"], BASE + NOISE)
    found |= finished(methods["muoneq"], BASE)  # The paper's gap is 0.0024.
    found |= finished(methods["muoneq:mode=rowcol"], BASE + NOISE)
    # The paper's gap is 0.0207, and the end of the interval 0.0206 and 0.0296.
    interval = "alice:last_layer=method:compensation=None:switch=none"
    found |= finished(methods[interval], BASE + NOISE + 0.01)
    found |= finished(methods[f"{interval}:b3=0"], BASE)
    # The paper's gap is 0.02.
    sign = "aro:base=sign:qr=qr_householder"
    eigen = "aro:base=sign:policy=eigen:qr=qr_householder"
    found |= finished(methods[sign], BASE) | finished(methods[eigen], BASE + NOISE)
    names = [e.method for e in orders.entries("level", found)]
    assert names == [eigen, sign, "racs:b1=0", "racs"]
    text = orders.report("level", found)
    cells = "| `racs:b1=0` | `racs` | much worse | +0.0000 ± 0.0196 |  |  |"
    assert cells in text
    assert f"| `{eigen}` | `{sign}` | +0.0200 | +0.0000 ± 0.0196 |  |  |" in text
    assert not orders.entries("no", found)
    counted = orders.counts(found)
    assert "0 are those of the papers, 4 are level and 0 are reversed" in counted
    assert "2 have the paper's gap within their interval and 0 have no" in counted


def test_the_gap_of_a_paper_is_one_of_losses():
    by_title = {ablation.title: ablation for ablation in ABLATIONS}

    def gap(title, name):
        variants = by_title[title].variants
        (variant,) = (v for v in variants if v.method == name)
        return by_title[title].gap(variant)

    assert gap("Last layer", "alice:last_layer=method") == math.log(21.95 / 21.79)
    assert gap("Shared rotations", "aro:sharing=global") == pytest.approx(0.008)
    assert gap("Averages of RACS", "racs:b1=0") == math.inf
    exact_qr = "aro:base=sign:policy=eigen:qr=qr_householder"
    assert gap("Rotations with Householder's QR", exact_qr) == 0.02
    assert math.isnan(gap("Switching", "alice:last_layer=method:switch=gaussian"))
    assert math.isnan(gap("Modes of MuonEq", "muoneq"))


def test_a_gap_to_one_that_fails_is_unknown():
    better, worse = Variant("muon", "failed"), Variant("adamw", "20.1", "muon")
    assert math.isnan(Ablation("Ours", "A paper", (better, worse)).gap(worse))


def test_a_method_has_one_search_in_all_tables():
    searches = {}
    for variant in VARIANTS:
        searches.setdefault(variant.method, set()).add(variant.trials)
    assert searches["muoneq"] == searches["adamw"] == {TRIALS}
    assert searches["mousse"] == {FEW_TRIALS}
    assert all(len(found) == 1 for found in searches.values())


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.title)
def test_what_is_better_is_a_row_of_the_same_table(ablation: Ablation):
    names = [variant.method for variant in ablation.variants]
    assert len(set(names)) == len(names)
    for variant in ablation.variants:
        assert variant.better is None or variant.better in names
        assert variant.better != variant.method


def test_printed_figures_are_in_the_order_of_the_rows():
    for ablation in ABLATIONS:
        figures = {
            v.method: float(v.figure)
            for v in ablation.variants
            if v.figure[:1].isdigit()
        }
        for variant in ablation.variants:
            if variant.method in figures and variant.better in figures:
                assert figures[variant.better] < figures[variant.method]


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.method)
def test_every_method_of_an_ablation_can_be_built(entry):
    task = TASKS[entry.task]
    params = jax.eval_shape(task.init, 0)
    jax.eval_shape(find(entry.method, entry.setting, task.arena)(1e-3).init, params)
