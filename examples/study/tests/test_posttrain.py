"""Tuning trained models: the order of runs, adapters, measures, and the tables."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_matrix as om
from examples.study.bench import commands, results
from examples.study.bench.tasks import TASKS
from examples.study.equal.config import SEEDS, TUNING
from examples.study.posttrain import bases, changes, cli, methods, protocol, runs, table
from examples.study.posttrain.changes import CHANGES
from examples.study.posttrain.protocol import ADAPTERS, Config, Entry, Outcome, due

STEM = pytest.mark.filterwarnings("ignore:Check how these parameters")


def made(config: Config) -> Outcome:
    """A loss with its minimum at an eighth, for adapters at four times the rate."""
    best = 4.0 if config.method in ADAPTERS else 1 / 8
    loss = 1 + math.log2(config.multiple / best) ** 2 / 10 + config.seed / 1e5
    loss -= 0.5 * (config.method == "muon")
    old = None if config.seed in TUNING else 2 + config.seed / 10
    rest = None if old is None else 0.5
    return Outcome(loss, old, [[0, 9.0], [10, loss]], rest, rest, rest, 1.0)


def finished(entry, found):
    while config := due(entry, found):
        assert config not in found
        found[config] = made(config)


def test_other_leaves_come_first_and_are_kept():
    found: dict[Config, Outcome] = {}
    finished(Entry("books", "adamw"), found)
    assert len(found) == 16 * 2
    best = protocol.other(Entry("books", "adamw"), found)
    before = len(found)
    finished(Entry("books", "adamw", "soap"), found)
    mine = [c for c in found if c.method == "soap"]
    assert len(mine) == len(found) - before
    assert {c.other for c in mine} == {best.other}
    assert {c.steps for c in mine} == {200}
    assert [c.seed for c in mine[-5:]] == [*SEEDS]
    assert protocol.left([Entry("books", "adamw", "soap")], found) == 0
    assert protocol.left([Entry("books", "adamw", "soap", True)], found) == 3 + 5
    finished(Entry("books", "adamw", "soap", True), found)
    few = [c for c in found if c.steps == 50]
    assert [c.seed for c in few] == [TUNING[0]] * 3 + [*SEEDS]


def test_the_bracket_goes_on_and_adapters_have_rates_of_their_own():
    found: dict[Config, Outcome] = {}
    for method in ("muon", "lora:muon", "poet"):
        finished(Entry("digits", "muon", method), found)
    best = {
        m: protocol.tuned(Entry("digits", "muon", m), found)
        for m in ("muon", "lora:muon")
    }
    assert best["muon"].multiple == pytest.approx(1 / 8, rel=0.5)
    assert best["lora:muon"].multiple == pytest.approx(4, rel=0.5)
    assert best["muon"].decay is not None
    for config in found:
        if config.method == "lora:muon":
            assert config.decay is None
            assert config.other is None
        if config.method == "poet":
            assert config.decay is None
            assert config.other is not None


@pytest.mark.broad
def test_every_optimizer_can_be_made_with_traced_numbers():
    for change in CHANGES:
        task = changes.task_of(change)
        params = jax.eval_shape(task.init, 0)
        for method in protocol.METHODS:
            form = Config(change, "adamw", method, 200, 1.0, 0.1, 1.0, 1.0)
            if method in ADAPTERS:
                form = dataclasses.replace(form, decay=None, other=None)
                zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), params)
                factors = functools.partial(methods.factors, change, zeros, 0)
                trained = jax.eval_shape(factors)
            else:
                trained = params

            def update(numbers, grads, form=form):
                tx = methods.optimizer(form, numbers)
                return tx.update(grads, tx.init(grads), grads)[0]

            got = jax.eval_shape(update, methods.numbers_of(form), trained)
            same = jax.tree.map(lambda a, b: a.shape == b.shape, got, trained)
            assert jax.tree.all(same), method


@pytest.mark.broad
def test_adapters_start_at_the_base():
    params = TASKS["books"].init(0)
    factors = methods.factors("books", params, 3)
    same = methods.merged("books", params, factors)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, same))
    labels = om.matrices.label_params(TASKS["books"].arena.dimension_numbers)(params)
    assert len(factors) == jax.tree.leaves(labels).count("matrix")
    moved = jax.tree.map(lambda x: x + 0.1, factors)
    changed = methods.merged("books", params, moved)
    paths = jax.tree.map(lambda a, b: not jnp.array_equal(a, b), params, changed)
    assert sum(jax.tree.leaves(paths)) == len(factors)


@pytest.mark.broad
def test_the_spectrum_of_a_change():
    """Of (out, in): the weights are 3 on the diagonal; the change is known."""
    kernel = 3 * np.eye(4, dtype="f")
    change = np.diag([2.0, 1.0, 1.0, 0.0]).astype("f")
    before, after = {"up": {"kernel": kernel}}, {"up": {"kernel": kernel + change}}
    numbers = om.matrices.by_path(include="kernel")
    found = runs.spectrum(before, after, numbers)
    assert found["stable_rank"] == pytest.approx(6 / 4, abs=1e-4)
    assert found["cosine"] == pytest.approx(12 / (6 * 6**0.5), abs=1e-4)
    assert found["size"] == pytest.approx(6**0.5 / 6, abs=1e-4)


def test_new_data_are_turned_or_another_text():
    images = TASKS["digits"].batches(1, 2, 3)["pixels"]
    turned = CHANGES["digits"].batches(1, 2, 3)["pixels"]
    np.testing.assert_array_equal(turned[1, 2], np.rot90(images[1, 2]))
    first, second = (CHANGES["books"].held_out(x) for x in ("validation", "test"))
    assert first.shape == second.shape
    rows = {row.tobytes() for row in first.reshape(-1, first.shape[-1])}
    assert not rows & {r.tobytes() for r in second.reshape(-1, second.shape[-1])}


def test_bases_have_the_same_loss(tmp_path, monkeypatch):
    calls = []

    def loss(change, base, steps):
        calls.append((change, base, steps))
        return 2.0 if base == "adamw" else 1.0 + 1400 / steps

    monkeypatch.setattr(bases, "_loss", loss)
    found = bases.find(tmp_path / "bases.json")
    assert found["books"] == {"adamw": [1600, 2.0], "muon": [1400, 2.0]}
    count = len(calls)
    assert bases.find(tmp_path / "bases.json") == found
    assert len(calls) == count


def test_the_command_does_bases_then_other_leaves_then_rows(
    tmp_path, monkeypatch, capsys
):
    path, done = tmp_path / "posttrain.jsonl", []
    monkeypatch.setattr(bases, "prepare", lambda: done.append("bases"))

    def run_all(rows, path, _, command, left, program):
        assert program == "examples.study.posttrain.runs"
        assert left() > 0
        done.append((rows[0].method, rows[0].few))
        found = table.read(path)
        for row in rows:
            while config := due(row, found):
                found[config] = made(config)
                results.append(config, found[config], path, command)

    monkeypatch.setattr(commands, "run_all", run_all)
    assert cli.main(["run", "--results", str(path)]) == 0
    assert done == ["bases", (None, False), ("adamw", False), ("adamw", True)]
    printed = capsys.readouterr().out
    assert "books, trained by muon, 50 steps" in printed
    (row, *_) = (x for x in printed.splitlines() if x.startswith("| `muon`"))
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2].startswith("0.5")
    assert cells[3].startswith("-0.4")  # Neither is exactly at its best multiple.
    assert cells[4] == "2.2000 ± 0.1581"
    assert cells[5] == "+0.0000 ± 0.0000"
    assert cells[7:10] == ["0.5", "0.5", "0.5"]
    assert cli.main(["run", "--results", str(path)]) == 0
    assert done[4:] == ["bases"]
    assert cli.main(["run", "--processes", "0"]) == 2


@STEM
@pytest.mark.slow
@pytest.mark.parametrize("method", ["muoneq", "poet", "lora:adamw", "lora:pair"])
def test_a_run_learns_the_new_data(method, monkeypatch):
    fresh = jax.tree.map(np.asarray, TASKS["digits"].init(5))
    monkeypatch.setattr(bases, "weights", lambda *_: fresh)
    is_adapter = method in ADAPTERS
    own = None if is_adapter else 1.0
    decay = None if method == "poet" else own
    multiple = 8.0 if is_adapter else 1.0
    config = Config("digits", "adamw", method, 40, multiple, 0.1, decay, own)
    runs._bench.cache_clear()
    found = runs.run(config)
    runs._bench.cache_clear()
    assert found.loss < found.curve[0][1] - 0.01
    assert found.old > 0
    assert found.size > 0
    if is_adapter:
        assert found.stable_rank <= methods.RANK
