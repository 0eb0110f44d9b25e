"""The comparison with equal budgets: its points, its order of runs, and its tables."""

import dataclasses
import hashlib
import inspect
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_matrix as om
from examples.study.bench import results, tasks
from examples.study.bench.comparison import all_methods
from examples.study.bench.config import Result
from examples.study.bench.search import best_rate
from examples.study.bench.tasks import TASKS
from examples.study.compare.styles import styles
from examples.study.equal import (
    cli,
    methods,
    orders,
    plot,
    protocol,
    sets,
    space,
    table,
)
from examples.study.equal.config import FRESH, SEEDS, TUNING, Config
from examples.study.equal.protocol import LENGTHS, Entry, due
from examples.study.equal.statistics import (
    difference,
    interval,
    resamples,
    row,
    speedup,
)

# Its first convolution has one channel, and AdamW on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:Check how these parameters")


def made(config: Config) -> Result:
    """A loss with its minimum in the middle of the rates, and a curve that falls."""
    base = space.base_of(config.method)
    middle = (space.METHODS | space.RANKED)[base].rates["books"]
    middle *= 16 if "mode=col" in config.method else 1
    loss = 1 + math.log2(config.rate / middle) ** 2
    loss += math.log2(config.other_rate / space.OTHER) ** 2
    loss += (config.b1 - 0.9) ** 2 + config.seed / 1e4
    loss -= 0.1 * (config.method == "muon")
    loss += config.method == "adamw" and config.decay != space.OTHER_DECAY
    curve = [[0, 9.0], [config.steps // 2, loss + 1], [config.steps, loss]]
    return Result(loss, curve, 1.0, 2048, 1.0)


def run_all(entry, found):
    while config := due(entry, found):
        assert config not in found
        found[config] = made(config)


def test_the_points_are_pinned_and_spread():
    points = np.array(space.POINTS)
    assert points.shape == (32, 5)
    digest = hashlib.sha256(points.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "e600b5f5cfb6a977"
    for axis in points.T:
        for part in (axis, axis[:16]):
            gaps = np.diff([0, *np.sort(part), 100])
            assert gaps.max() <= 2 * 100 / len(part)


def test_all_methods_try_the_same_points_of_their_axes():
    other = space.others("books")[3]
    for name, its in space.METHODS.items():
        tried = space.candidates(name, other)
        assert len(tried) == 16
        middle = its.rates["books"]
        for one, reference in zip(tried, space.candidates("adamw", other), strict=True):
            assert one.rate / middle == pytest.approx(reference.rate / 0.004, rel=0.01)
            assert one.warm_up == reference.warm_up
            for axis in ("b1", "b2"):
                given = getattr(reference, axis) if axis in its.axes else None
                assert getattr(one, axis) == given
            if "decay" in its.axes:
                ours = one.decay * middle
                assert ours == pytest.approx(reference.decay * 0.004, rel=0.02)
            assert one.other_rate == other.other_rate


def test_ranges_are_those_of_the_page():
    tried = [
        c
        for name in space.METHODS
        for c in space.candidates(name, space.others("books")[0])
    ]
    for axis, (low, high) in {
        "b1": (0.7, 0.98),
        "b2": (0.9, 0.999),
        "warm_up": (0.02, 0.4),
    }.items():
        values = [v for c in tried if (v := getattr(c, axis)) is not None]
        assert low <= min(values) < low + 0.25 * (high - low)
        assert high >= max(values) > high - 0.25 * (high - low)


def test_rates_begin_at_the_best_of_the_first_study():
    found = results.read()
    for task in LENGTHS:
        best = {}
        for entry in all_methods(task):  # Those with the paper's size come last.
            best[entry.method] = best_rate(entry, found)
        for name, its in (space.METHODS | space.RANKED).items():
            if name != "adamw" and task in its.rates:
                assert its.rates[task] == pytest.approx(best[name])


def test_methods_have_the_settings_that_they_search():
    for name, its in (space.METHODS | space.RANKED).items():
        if name != "adamw":
            have = set(inspect.signature(getattr(om, name)).parameters)
            names = {"decay": "weight_decay"}
            assert {names.get(axis, axis) for axis in its.axes} <= have


def test_runs_come_in_the_order_of_the_protocol():
    found: dict[Config, Result] = {}
    run_all(Entry("books"), found)
    assert len(found) == 64
    assert {c.seed for c in found} == set(TUNING)
    assert {c.method for c in found} == {"adamw"}
    best = protocol.other("books", found)
    pairs = {(c.other_rate, c.b1): made(c).loss for c in found if c.seed == TUNING[0]}
    assert (best.other_rate, best.b1) == min(pairs, key=pairs.get)

    before = len(found)
    run_all(Entry("books", "muon"), found)
    mine = [c for c in found if c.method == "muon"]
    assert len(mine) == len(found) - before == 16 * 2 + 2 * 2 + 5
    assert {c.other_rate for c in mine} == {best.other_rate}
    assert [c.seed for c in mine[-5:]] == [*SEEDS]
    tried = {c.rate: made(c).loss for c in mine[:-5] if c.b1 == mine[-1].b1}
    assert mine[-1].rate == min(tried, key=tried.get)
    assert protocol.left([Entry("books", "muon")], found) == 0
    assert protocol.left([Entry("books", "muon", 4)], found) == 3 + 5

    run_all(Entry("books", "muon", 16), found)  # Needs no row of the shorter lengths.
    longer = [c for c in found if c.steps == 1600]
    assert [c.seed for c in longer] == [TUNING[0]] * 3
    assert [c.rate / mine[-1].rate for c in longer] == pytest.approx(
        [0.5, 1, 2], rel=1e-3
    )
    assert sum(c.steps == 6400 for c in found) == 3 + 5


def test_adamw_keeps_the_settings_of_the_first_step():
    """Its own 16 are worse here, so that those run with half and twice the rate."""
    found: dict[Config, Result] = {}
    run_all(Entry("books", "adamw"), found)
    best = protocol.other("books", found)
    tuned = protocol.tuned(Entry("books", "adamw"), found)
    losses = [made(c).loss for c in space.candidates("adamw", best)]
    assert min(losses) > made(best).loss
    assert (tuned.b1, tuned.decay) == (best.b1, best.decay)
    assert protocol.left([Entry("books", "adamw")], found) <= 0


def test_a_method_with_options_has_the_settings_of_the_one_without():
    found: dict[Config, Result] = {}
    entry = Entry("books", "muoneq:mode=col")
    run_all(entry, found)
    base = protocol.tuned(Entry("books", "muoneq"), found)
    ours = protocol.tuned(entry, found)
    assert ours == dataclasses.replace(base, method=entry.method, rate=ours.rate)
    mine = [c for c in found if c.method == entry.method]
    powers = sorted({round(math.log2(c.rate / base.rate)) for c in mine})
    best = round(math.log2(ours.rate / base.rate))  # Far above the middle, see `made`.
    assert powers == list(range(-1, best + 2))
    assert best >= 3
    assert [c.seed for c in mine[-5:]] == [*SEEDS]
    assert len(mine) == len(powers) * len(TUNING) + len(SEEDS)
    assert protocol.left([Entry("books", "muoneq:mode=row")], found) == 3 * 2 + 5


def test_verdicts_on_an_order():
    """Losses whose difference is 0.010 on average, with an interval of 0.0039."""
    better = np.array([1.0, 1.1, 1.2, 1.3, 1.4])
    parts = np.array([0.006, 0.008, 0.010, 0.012, 0.014])
    ahead, behind, close = better - parts, better + parts, better + parts - 0.0095
    assert orders.judged(behind, better, 0.1) == ("+0.0100 ± 0.0039", "yes")
    assert orders.judged(ahead, better, 0.1) == ("-0.0100 ± 0.0039", "no")
    for gap, verdict in (
        (0.0036, "level"),  # 0.0005 and 0.0030, half of the 90% interval, are less.
        (0.0034, "undecided"),
        (math.inf, "undecided"),
        (math.nan, "undecided"),
    ):
        assert orders.judged(close, better, gap) == ("+0.0005 ± 0.0039", verdict)
        assert orders.judged(better - parts + 0.0095, better, gap)[1] == verdict
    failed = np.array([math.inf, *better[1:]])
    assert orders.judged(failed, better, 0.1) == ("failed", "yes")
    assert orders.judged(better, failed, 0.1) == ("failed", "no")
    assert orders.judged(failed, failed, 0.1) == ("failed", "undecided")


@pytest.mark.broad
def test_orders_are_those_that_were_reversed_or_undecided():
    first = results.read()
    found = list(orders.every(first))
    verdicts = [order.first.judged(first)[1] for order in found]
    assert verdicts.count("no") == 18
    assert verdicts.count("level") == len(found) - 18 == 8
    entries = orders.entries({})
    assert {"mars_adamw", "poet:block=8", "muon_plus"} <= {e.method for e in entries}
    assert {e.seeds for e in entries} == {FRESH, ()}  # Looks have no rows.
    assert not {*FRESH} & {*SEEDS, *TUNING}  # The first study has SEEDS, too.


def test_a_change_with_a_large_gain_runs_with_other_seeds(monkeypatch):
    change, method = look = "sumo:side=short", "sumo"
    monkeypatch.setattr(orders, "LOOKS", [look])
    heading = "| method | without the change | validation | books, ten seeds "
    row = lambda: orders.looks(found).splitlines()[2]
    found: dict[Config, Result] = {}
    assert orders.looks(found).startswith(heading)
    assert row() == f"| `{change}` | `{method}` |  |  |  |"
    for name in look:
        run_all(Entry("books", name, seeds=()), found)
    assert row() == f"| `{change}` | `{method}` | +0.0000 | - | - |"
    few = orders.entries(found)
    for config, run in found.items():
        if config.method == change:
            found[config] = dataclasses.replace(run, loss=run.loss - 0.02)
    assert row() == f"| `{change}` | `{method}` | -0.0200 |  |  |"
    more = [
        entry
        for name in look
        for entry in (Entry("books", name, seeds=FRESH), Entry("digits", name))
    ]
    assert {*orders.entries(found)} - {*few} <= {*more} <= {*orders.entries(found)}
    for entry in more:
        run_all(entry, found)
    zero = "+0.0000 ± 0.0000"
    assert row() == f"| `{change}` | `{method}` | -0.0200 | {zero} | {zero} |"


def test_a_row_without_seeds_only_chooses_its_settings():
    found: dict[Config, Result] = {}
    run_all(Entry("books", "muon", seeds=()), found)
    assert {c.seed for c in found} == {*TUNING}
    before = len(found)
    assert protocol.left([Entry("books", "muon", seeds=FRESH)], found) == len(FRESH)
    run_all(Entry("books", "muon", seeds=FRESH), found)
    assert [c.seed for c in list(found)[before:]] == [*FRESH]


@pytest.mark.slow
def test_every_method_of_the_orders_builds():
    params, arena = TASKS["books"].init(0), TASKS["books"].arena
    for entry in orders.entries({}):
        base = space.base_of(entry.method)
        config = dataclasses.asdict(space.candidates(base, space.others("books")[0])[0])
        settings = {k: v for k, v in config.items() if isinstance(v, float)}
        tx = methods.optimizer(entry.method, settings, arena, 10)
        state = jax.eval_shape(tx.init, params)
        jax.eval_shape(tx.update, params, state, params)


def test_failed_runs_are_worse_than_all_others():
    found: dict[Config, Result] = {}
    run_all(Entry("books", "muon"), found)
    best = protocol.tuned(Entry("books", "muon"), found)
    lost = dataclasses.replace(best, seed=TUNING[1])
    found[lost] = dataclasses.replace(found[lost], loss=None)
    run_all(Entry("books", "muon"), found)
    assert protocol.tuned(Entry("books", "muon"), found) != best


@pytest.mark.broad
def test_validation_and_test_sets_share_nothing():
    for task in LENGTHS:
        both = [sets.held_out(task, which) for which in ("validation", "test")]
        if task == "digits":
            both = [data["pixels"].reshape(-1, 28 * 28) for data in both]
        first, second = [x.reshape(-1, x.shape[-1]) for x in both]
        assert first.shape == second.shape
        assert not {x.tobytes() for x in first} & {x.tobytes() for x in second}


@pytest.mark.broad
def test_the_schedule_is_that_of_the_tasks():
    ours, theirs = methods.schedule(0.1, 0.05, 400), tasks.schedule(0.1, 400)
    for step in (0, 5, 19, 20, 150, 399):
        np.testing.assert_allclose(ours(step), theirs(step), rtol=1e-5)


@pytest.mark.broad
def test_matrices_start_by_their_fan_in():
    task = TASKS["digits"]
    fresh = task.init(0)
    labels = om.matrices.label_params(task.arena.dimension_numbers)(fresh)
    started = methods.start("muon", task.arena, fresh, 0)
    again = methods.start("aro", task.arena, fresh, 0)
    other = methods.start("muon", task.arena, fresh, 1)
    for label, a, b, c, d in zip(
        *map(jax.tree.leaves, (labels, fresh, started, again, other)), strict=True
    ):
        np.testing.assert_array_equal(b, c)
        if label == "matrix":
            fan_in = math.prod(a.shape[:-1])
            np.testing.assert_allclose(b.std() * fan_in**0.5, 1, rtol=0.05)
            assert not np.array_equal(b, d)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.broad
@pytest.mark.daily("muoneq")
@pytest.mark.parametrize("name", ["adamw", "muoneq"])
def test_traced_settings_are_those_of_the_recipe(name):
    task = TASKS["books"]
    params = {"layer": {"kernel": jnp.ones((8, 4))}, "norm": {"scale": jnp.ones(4)}}
    gradient = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape), params
    )
    config = dataclasses.replace(
        space.candidates(name, space.others("books")[2])[5], seed=0
    )
    settings = {
        k: v for k, v in dataclasses.asdict(config).items() if isinstance(v, float)
    }

    @jax.jit
    def step(settings):
        tx = methods.optimizer(name, settings, task.arena, 10)
        updates, state = tx.update(gradient, tx.init(params), params)
        return updates, tx.update(gradient, state, params)[0]

    lr = methods.schedule(config.rate, config.warm_up, 10)
    other_lr = methods.schedule(config.other_rate, config.other_warm_up, 10)
    other = methods.adamw(other_lr, config.other_b1, config.other_b2, 0.1)
    if name == "adamw":
        matrix = methods.adamw(lr, config.b1, config.b2, config.decay)
        label = {"layer": {"kernel": "matrix"}, "norm": {"scale": "other"}}
        tx = optax.partition({"matrix": matrix, "other": other}, label)
    else:
        tx = om.muoneq(lr, b1=config.b1, weight_decay=config.decay, other=other)
    tx = optax.chain(optax.clip_by_global_norm(1.0), tx)
    first, state = tx.update(gradient, tx.init(params), params)
    second, _ = tx.update(gradient, state, params)

    def assert_close(got, want):
        error = 1e-6 * np.max(np.abs(want))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=error)

    jax.tree.map(assert_close, step(settings), (first, second))


@pytest.mark.broad
@pytest.mark.parametrize(
    "task",
    [
        "books",
        *(pytest.param(x, marks=pytest.mark.slow) for x in LENGTHS if x != "books"),
    ],
)
def test_every_method_builds_with_its_settings(task):
    params = TASKS[task].init(0)
    for name in space.methods(task):
        config = dataclasses.asdict(space.candidates(name, space.others(task)[0])[0])
        settings = {k: v for k, v in config.items() if isinstance(v, float)}
        tx = methods.optimizer(name, settings, TASKS[task].arena, 10)
        jax.eval_shape(tx.init, params)


@pytest.mark.broad
def test_tables_and_intervals():
    found: dict[Config, Result] = {}
    assert (
        table.table("books", 1, found) == "None of the 12 rows has all of its runs yet."
    )
    for name in ("adamw", "muon"):
        run_all(Entry("books", name), found)
    rows = {name: row(Entry("books", name), found) for name in ("adamw", "muon")}
    mean, half = difference(rows["muon"], rows["adamw"])
    losses = [rows[name].losses.mean() for name in ("muon", "adamw")]
    assert mean == pytest.approx(losses[0] - losses[1])
    assert half == pytest.approx(0, abs=1e-9)  # All seeds differ by the same.
    middle, low, high = speedup(rows["muon"], rows["adamw"])
    assert low <= middle <= high
    assert speedup(rows["adamw"], rows["muon"])[0] == 0  # It never gets there.
    text = table.table("books", 1, found)
    assert text.splitlines()[2].startswith("| `muon` |")
    assert text.endswith("10 of 12 rows do not have all of their runs yet.")
    assert table.settings("books", 1, found).count("`") == 4


def test_intervals_hold_a_mean_nearly_as_often_as_they_say():
    """Of five normal numbers in 92% of cases; plain percentiles do in 83%."""
    values = np.random.default_rng(0).standard_normal((1000, 5))
    draws, every = resamples(5), [*itertools.product(range(5), repeat=5)]
    ends = np.array([interval(x[draws].mean(1), draws) for x in values])
    means = values[:, every].mean(2)
    quantile = lambda q: np.quantile(means, q, axis=1, method="inverted_cdf").T
    most = 2.776445 * math.sqrt(5 / 4)  # Student's t with four degrees of freedom.
    levels = [0.5 * math.erfc(x / math.sqrt(2)) for x in (most, -most)]
    np.testing.assert_allclose(ends, quantile(levels), atol=1e-12)
    holds = lambda ends: np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0))
    assert holds(ends) == pytest.approx(0.92, abs=0.01)
    assert holds(quantile([0.025, 0.975])) == pytest.approx(0.83, abs=0.015)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_resamples_are_all_there_are(n):
    seen = np.array([*itertools.product(range(n), repeat=n)]).sum(1) / n
    found = resamples(n)
    assert len(found) == math.comb(2 * n - 1, n)
    ends = interval(found.mean(1), found)
    np.testing.assert_allclose(ends, (seen.min(), seen.max()))


@pytest.mark.broad
def test_the_summary_has_a_column_where_adamw_and_another_have_run():
    found: dict[Config, Result] = {}
    for entry in protocol.entries("books", [1, 4, 16]):
        names = {4: ("adamw", "muon"), 16: ("adamw",)}
        if entry.length == 1 or entry.method in names[entry.length]:
            run_all(entry, found)
    heading, _, *rows = table.summary(found).splitlines()
    columns = "| method | books, 400 steps | books, 1,600 steps | time | state |"
    assert heading == columns
    assert [r.split("`")[1] for r in rows] == [*list(space.METHODS)[1:], "adamw"]
    assert rows[0].startswith("| `muon` | -0.")
    assert rows[0].count("x (") == 2
    assert "x (" not in rows[1].split("|")[3]  # Still to run.


@pytest.mark.broad
def test_pictures_show_the_runs():
    """Those that are committed, and a drawing that is made anew."""
    found = table.read()
    for task, lengths in LENGTHS.items():
        for length in lengths:
            said = "python -m examples.study bench table --write"
            assert plot.is_current(task, length, found), said


def test_each_method_has_one_color_of_its_own():
    names = [*space.METHODS]
    looks = styles(names)
    assert len({look["color"] for look in looks}) == len(names)
    for name, look in zip(names, looks, strict=True):
        assert look.items() >= om.diagnostics.method_style(name).items()
    twice = styles(["muon", "aro", "muon:b1=0.9"])
    assert twice[0]["color"] == twice[2]["color"] != twice[1]["color"]
    assert [look["linestyle"] for look in twice] == ["-", "-", "--"]


@pytest.mark.broad
def test_a_picture_is_drawn_when_its_runs_change(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "PATH", tmp_path / "equal.jsonl")
    found: dict[Config, Result] = {}
    plot.refresh(found)
    assert not list(tmp_path.iterdir())
    for name in ("adamw", "muon"):
        run_all(Entry("books", name), found)
    plot.refresh(found)
    assert [path.name for path in tmp_path.iterdir()] == ["equal_books_1.png"]
    assert plot.is_current("books", 1, found)
    run_all(Entry("books", "aro"), found)
    assert not plot.is_current("books", 1, found)


@pytest.mark.broad
def test_mistakes_are_explained(tmp_path, capsys):
    path = ["--results", str(tmp_path / "equal.jsonl")]
    assert cli.main(["run", "books", "--lengths", "3", *path]) == 2
    assert "--lengths of books must be of 1, 4, 16, got 3." in capsys.readouterr().err
    assert cli.main(["run", "books", "--methods", "mun", *path]) == 2
    assert "--methods of books must be of adamw, muon," in capsys.readouterr().err
    assert cli.main(["run", "books", "--processes", "0", *path]) == 2
    assert "--processes must be positive, got 0." in capsys.readouterr().err
    assert cli.main(["table", "digits", "--lengths", "1", *path]) == 0
    assert "None of the 12 rows" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_repeats_and_is_measured_on_the_set_of_its_seed():
    from examples.study.equal.runs import run

    config = space.candidates("muon", space.others("digits")[0])[0]
    config = dataclasses.replace(config, steps=20, seed=TUNING[0])
    first, again = run(config), run(config)
    assert first.loss == again.loss
    assert len(first.curve) == 5
    assert len(run(dataclasses.replace(config, seed=0)).curve) == 21
