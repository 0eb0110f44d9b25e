"""The rules of the comparison, on curves made by hand; the table and the picture."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from examples.pretrain.config import SIZES
from examples.study.compare import comparison, plot, table
from examples.study.compare.protocol import Curve, first_step_at, summarize

STEPS = (10, 20, 30, 40)


def curve(name, losses, *, rate=1e-3, seed=0, ms=5.0, size=2048):
    return Curve(name, rate, seed, STEPS[: len(losses)], tuple(losses), ms, size)


PLAIN = [
    curve("adamw", [4.0, 3.5, 3.2, 3.1], rate=1e-2),
    curve("adamw", [4.0, 3.0, 2.5, 2.0], rate=1e-3),
    curve("fast", [3.0, 2.0, 1.5, 1.0]),
    curve("slow", [4.0, 3.5, 2.5, 2.25]),
    curve("broken", [4.0, math.nan]),
]


def by_name(curves):
    return {row.optimizer: row for row in summarize(curves)}


def test_speedup_is_adamws_steps_by_the_first_step_at_its_final_loss():
    rows = by_name(PLAIN)
    assert (rows["fast"].reached, rows["fast"].speedup) == (20, 2.0)
    assert (rows["adamw"].reached, rows["adamw"].speedup) == (40, 1.0)


@pytest.mark.parametrize("name", ["slow", "broken"])
def test_what_was_not_reached_is_not_extrapolated(name):
    row = by_name(PLAIN)[name]
    assert row.reached is None
    assert row.speedup is None


def test_adamw_is_judged_at_its_best_learning_rate():
    row = by_name(PLAIN)["adamw"]
    assert (row.learning_rate, row.loss, row.tried) == (1e-3, 2.0, 2)


def test_rows_are_sorted_by_loss_and_divergence_is_last():
    order = [row.optimizer for row in summarize(PLAIN)]
    assert order == ["fast", "adamw", "slow", "broken"]


def test_a_loss_passed_and_lost_again_counts_from_the_first_time():
    assert first_step_at(curve("x", [3.0, 1.0, 2.0, 1.5]), 1.0) == 20
    assert first_step_at(curve("x", [3.0, 1.0, 2.0, 1.5]), 0.5) == math.inf


def seeded(name, *losses, rate=1e-3):
    return [curve(name, row, seed=i, rate=rate) for i, row in enumerate(losses)]


def test_medians_over_seeds_each_against_adamw_of_its_seed():
    adamw = seeded("adamw", [5, 4, 3, 2.0], [5, 4, 3, 1.0], [5, 4, 3, 1.5])
    # Reached at 20, 40 and 30 by its own seed's AdamW.
    other = seeded("x", [3, 2, 2, 1.9], [5, 4, 3, 1.0], [5, 1.9, 1.5, 1.4])
    row = by_name(adamw + other)["x"]
    assert (row.loss, row.spread, row.seeds) == (1.4, (1.0, 1.9), 3)
    assert (row.reached, row.speedup) == (30, 40 / 30)


def test_reached_by_a_minority_of_seeds_is_not_reached():
    adamw = seeded("adamw", *[[5, 4, 3, 2.0]] * 3)
    other = seeded("x", [3, 2, 2, 1.9], [5, 4, 3, 2.5], [5, 4, 3, 2.5])
    assert by_name(adamw + other)["x"].reached is None


def test_best_learning_rate_is_by_the_median_over_seeds():
    lucky = seeded("adamw", [4, 3, 2, 0.1], [4, 3, 2, 3.0], [4, 3, 2, 3.0], rate=1e-2)
    steady = seeded("adamw", *[[4, 3, 2, 2.0]] * 3)
    assert by_name(lucky + steady)["adamw"].learning_rate == 1e-3


PLAN = comparison.Comparison(
    model=SIZES["tiny"],
    optimizers=("adamw", "fast", "slow", "broken"),
    learning_rates=(1e-2, 1e-3),
    sweep="adamw",
    steps=40,
    batch=16,
    accumulate=1,
    data="books",
    tokenizer=None,
    seeds=1,
    eval_every=10,
    validation=128,
    checksum="-",
)


def printed(plan, curves):
    console = Console(width=80, record=True, file=io.StringIO())
    table.show(plan, summarize(curves), console)
    return console.export_text()


def test_the_table_says_which_rates_were_given():
    text = " ".join(printed(PLAN, PLAIN).split())
    assert "With rates of their own" not in text
    plan = dataclasses.replace(PLAN, own_rates={"fast": 1e-2})
    assert "With rates of their own: fast." in " ".join(printed(plan, PLAIN).split())
    plan = dataclasses.replace(PLAN, own_rates=dict.fromkeys(PLAN.optimizers, 1e-2))
    assert "those given with the names" in " ".join(printed(plan, PLAIN).split())
    assert "faster" in text


def test_the_table_says_what_was_run():
    text = printed(PLAN, PLAIN)
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "not reached" in lines["slow"]
    assert "diverged" in lines["broken"]
    assert "2.00x" in lines["fast"]
    assert "2 x 1" in lines["adamw"]
    assert "2.0 KiB" in lines["fast"]
    flowing = " ".join(text.split())
    for part in (
        "40 steps",
        "1 seed,",
        "0.01, 0.001",
        "Nothing is extrapolated",
        "favours some methods and hurts others",
        "edge of the sweep",
    ):
        assert part in flowing


def test_the_table_fits_a_screen_of_eighty_columns():
    wide = [
        curve("mars_adamw", [1.2345] * 4, rate=1.25e-3, ms=123.4, size=9 * 10**8),
        *PLAIN,
    ]
    text = printed(PLAN, wide)
    assert "…" not in text
    row = next(line for line in text.splitlines() if "mars_adamw" in line)
    for cell in ("0.00125", "1.2345", "10", "4.00x", "123.4", "858.3 MiB"):
        assert cell in row


def test_options_in_names_are_shown_in_full_and_noted():
    name = "alice:compensation=None:switch=none:b3=0:update_interval=10"
    text = printed(PLAN, [curve(name, [1.2345] * 4), *PLAIN])
    column = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert name in "".join(column)
    assert "…" not in text
    assert "Options in a name may leave this protocol" in " ".join(text.split())
    assert "Options in a name" not in printed(PLAN, PLAIN)


@pytest.mark.broad
def test_results_file_and_picture(tmp_path):
    rows = summarize(PLAIN)
    comparison.write_results(tmp_path / "results.json", PLAN, PLAIN, rows)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["plan"]["steps"] == 40
    assert len(content["curves"]) == len(PLAIN)
    plot.draw(PLAIN, rows, tmp_path / "curves.png")
    from matplotlib.image import imread

    picture = imread(tmp_path / "curves.png")
    assert picture.shape[0] > 400
    assert np.unique(picture.reshape(-1, picture.shape[-1]), axis=0).shape[0] > 20
