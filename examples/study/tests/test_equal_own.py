"""A user's own optimizer with equal budgets, from a module of the user."""

import dataclasses
import json
import math
import re
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_matrix as om
from examples.pretrain import user
from examples.pretrain.errors import UserError
from examples.study.bench import results
from examples.study.bench.config import Result
from examples.study.bench.tasks import TASKS
from examples.study.equal import (
    catalogue,
    cli,
    methods,
    own,
    protocol,
    runs,
    space,
    table,
)
from examples.study.equal.config import PATH, SEEDS, TUNING, Config
from examples.study.report.cli import main as report

# Its first convolution has one channel, and AdamW on purpose.
STEM = pytest.mark.filterwarnings("ignore:Check how these parameters")

ARENA = TASKS["digits"].arena
MODULE = """
import optax
import optax_matrix as om


def make(learning_rate, b1=0.9, weight_decay=0.1, other=None):
    return om.muoneq(learning_rate, b1=b1, weight_decay=weight_decay, other=other)


def matrices(learning_rate, dimension_numbers="none"):
    assert dimension_numbers != "none"
    return optax.sgd(learning_rate)


def late(learning_rate, momentum):
    return optax.sgd(learning_rate)


def number(learning_rate):
    return optax.sgd(learning_rate * 2)


def nothing(learning_rate):
    return None


def without():
    return optax.sgd(0.1)


def by_keyword(*, learning_rate=0.1):
    return optax.sgd(learning_rate)


value = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """The file of a user's module."""
    path = tmp_path / "mine_of_a_user.py"
    path.write_text(MODULE)
    (tmp_path / "broken_of_a_user.py").write_text("1 / 0")
    (tmp_path / "needy_of_a_user.py").write_text("import missing_of_a_user")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop(path.stem, None)  # The next test has another one.


def made(config: Config, best: float = 0.004) -> Result:
    """A loss with its minimum at a rate, below AdamW's."""
    loss = 1 + math.log2(config.rate / best) ** 2 / 100 + config.seed / 1e6
    curve = [[0, 9.0], [config.steps // 2, loss + 1], [config.steps, loss]]
    return Result(loss, curve, 1.0, 2048, 1.0)


@pytest.fixture
def counted(monkeypatch):
    """Runs whose losses are made by hand, in this process."""
    done = []

    def run_all(entries, path, count, command, left, program):
        assert count >= 1
        assert left() >= 0
        assert program == "examples.study.equal.runs"
        for entry in entries:
            while config := protocol.due(entry, own.read(path)):
                results.append(config, made(config), path, command)
                done.append(config)

    monkeypatch.setattr(cli, "run_all", run_all)
    return done


def trial(path, *arguments):
    return cli.main(["try", *arguments, "--results", str(path)])


def axes(function):
    return own.entry("books", function).own.axes


def test_axes_are_the_keywords_that_the_name_does_not_set():
    assert axes("mine_of_a_user:make") == ("b1", "decay")
    assert axes("mine_of_a_user:make:b1=0.5") == ("decay",)
    assert axes("mine_of_a_user:matrices") == ()
    assert axes("optax_matrix:soap") == space.METHODS["soap"].axes
    assert axes("optax_matrix:muoneq") == space.METHODS["muoneq"].axes


def test_it_has_the_points_of_all_others_and_the_committed_runs(
    tmp_path, counted, capsys
):
    path = tmp_path / "runs" / "mine.jsonl"
    study = PATH.read_bytes()
    names = ("mine_of_a_user:make", "mine_of_a_user:make:b1=0.5")
    assert trial(path, *names, "--tasks", "books", "digits") == 0
    assert PATH.read_bytes() == study
    assert len(results.read(path, Config)) == len(counted)
    other = protocol.other("books", table.read())
    muoneq = space.candidates("muoneq", other, space.Search(0.004, ("b1", "decay")))
    method = own.name_of(names[0])
    first = [c for c in counted if (c.task, c.method) == ("books", method)]
    tried = {c for c in first if c.seed in TUNING}
    points = [dataclasses.replace(c, method=method, seed=TUNING[0]) for c in muoneq]
    assert {*points} <= tried
    assert [c.seed for c in first[-5:]] == [*SEEDS]
    assert {c.b1 for c in counted if c.method == own.name_of(names[1])} == {None}
    printed = capsys.readouterr().out
    assert printed.index("books: tiny LLaMA") < printed.index("digits: vision")
    for name in ("adamw", "muon", "mousse", method):
        assert f"| `{name}` | " in printed
    row = json.loads(path.read_text().splitlines()[-1])
    command = f"python -m examples.study equal try {' '.join(names)}"
    assert row["where"]["command"] == command
    assert path.with_name("mine_books.png").stat().st_size > 10_000
    page = path.with_suffix(".html").read_text()
    assert method in page
    assert "AdamW" in page


def test_rates_go_on_while_the_best_lies_at_an_end(tmp_path, counted):
    assert trial(tmp_path / "mine.jsonl", "mine_of_a_user:make", "--rate", "4e-4") == 0
    rates = [c.rate for c in counted if c.seed == SEEDS[0]]
    assert rates == [pytest.approx(4e-3, rel=0.5)]


@pytest.mark.broad
def test_finished_runs_are_kept_and_those_of_a_changed_file_do_not_count(
    tmp_path, counted, module, capsys
):
    path, name = tmp_path / "mine.jsonl", "mine_of_a_user:make"
    assert trial(path, name) == 0
    first = [*counted]
    counted.clear()
    assert trial(path, name) == 0
    assert not counted
    module.write_text(MODULE + "\n# Changed.\n")
    capsys.readouterr()
    assert trial(path, name) == 0
    assert [c.rate for c in counted] == [c.rate for c in first]
    assert not {*counted} & {*first}
    rows = [x for x in capsys.readouterr().out.splitlines() if name in x]
    assert [row.split("`")[1] for row in rows] == [own.name_of(name)]


@pytest.mark.broad
@pytest.mark.usefixtures("counted")
def test_a_page_of_the_committed_runs_and_of_ones_own(tmp_path):
    path = tmp_path / "mine.jsonl"
    assert trial(path, "mine_of_a_user:make") == 0
    page = tmp_path / "page.html"
    assert report(["equal:books", "--results", str(path), "--out", str(page)]) == 0
    assert own.name_of("mine_of_a_user:make") in page.read_text()
    assert report(["equal:books", "equal:digits", "--out", str(page)]) == 0
    assert "mine_of_a_user" not in page.read_text()
    assert "mousse" in page.read_text()
    assert report(["equal:nothing", "--out", str(page)]) == 2


@pytest.mark.broad
def test_a_function_without_other_trains_the_matrices_only():
    params = {"up": {"kernel": jnp.eye(4, 8)}, "bias": jnp.ones(8)}
    numbers = om.matrices.by_path(include="kernel")
    other = optax.sgd(10.0)
    method = own.name_of("mine_of_a_user:matrices")
    tx = own.build(method, 0.5, {}, None, other, numbers)
    updates, _ = tx.update(params, tx.init(params), params)
    assert jnp.array_equal(updates["bias"], -10 * jnp.ones(8))
    assert jnp.array_equal(updates["up"]["kernel"], -0.5 * jnp.eye(4, 8))


@pytest.mark.broad
def test_traced_settings_reach_the_function():
    entry = own.entry("books", "mine_of_a_user:make")
    other = protocol.other("books", table.read())
    config = space.candidates(entry.method, other, entry.own)[0]
    params = {"up": {"kernel": jnp.eye(4, 8)}, "norm": {"scale": jnp.ones(8)}}

    def update(settings, name):
        tx = methods.optimizer(name, settings, TASKS["books"].arena, 400)
        return tx.update(params, tx.init(params), params)[0]

    mine = runs.settings_of(config)
    assert set(mine) >= {"b1", "decay", "rate", "warm_up"}
    ours = jax.jit(update, static_argnums=1)(mine, entry.method)
    muoneq = jax.jit(update, static_argnums=1)(mine, "muoneq")
    assert jax.tree.all(jax.tree.map(jnp.array_equal, ours, muoneq))


@pytest.mark.broad
def test_the_module_of_the_readme_makes_an_optimizer(tmp_path):
    text = (results.PATH.parents[1] / "README.md").read_text()
    block = r"```python\n# my_module\.py.*?\n(.*?)```"
    (module,) = re.findall(block, text, re.DOTALL)
    (tmp_path / "of_the_readme.py").write_text(module)
    assert axes("of_the_readme:make:b1=0.9") == ("decay",)
    method = user.find("of_the_readme:make:b1=0.9")
    params = {"up": {"kernel": jnp.eye(4, 8), "bias": jnp.zeros(8)}}
    tx = method(optax.constant_schedule(0.1))
    updates, _ = tx.update(params, tx.init(params), params)
    assert jnp.abs(updates["up"]["kernel"]).max() > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("make", "'make' names no function; give its module, too: my_module:make"),
        ("nowhere.at_all:make", "There is no module 'nowhere.at_all' in the current"),
        ("broken_of_a_user:make", r"Cannot import .* \(ZeroDivisionError: division"),
        ("needy_of_a_user:make", r"Cannot import .* No module named 'missing_of_a"),
        ("mine_of_a_user:maker", "The module mine_of_a_user has no 'maker'"),
        ("mine_of_a_user:value", "mine_of_a_user:value must be a function, got 3"),
        ("mine_of_a_user:nothing", "must return an optax.GradientTransformation"),
        ("mine_of_a_user:late", r"failed, .* \(TypeError: .* argument: 'momentum'"),
        ("mine_of_a_user:number", "called with a schedule as its learning rate"),
        ("mine_of_a_user:without", "must take the learning rate as its first"),
        ("mine_of_a_user:by_keyword", "must take the learning rate as its first"),
        ("mine_of_a_user:make:b2=1", "make has no option 'b2'; its options: b1"),
    ],
)
def test_mistakes_get_one_line(tmp_path, capsys, counted, name, message):
    with pytest.raises(UserError, match=message):
        user.find(name, ARENA.dimension_numbers)
    assert trial(tmp_path / "mine.jsonl", name) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not counted
    assert not (tmp_path / "mine.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--results", str(PATH)), "must be a file of your own"),
        (("--rate", "-1"), "--rate must be positive, got -1.0"),
        (("--processes", "0"), "--processes must be positive, got 0"),
    ],
)
def test_wrong_arguments_get_one_line(tmp_path, capsys, counted, arguments, message):
    path = tmp_path / "mine.jsonl"
    command = ["try", "mine_of_a_user:make", "--results", str(path), *arguments]
    assert cli.main(command) == 2
    assert not counted
    assert message in capsys.readouterr().err


@STEM
@pytest.mark.slow
def test_a_recipe_by_its_path_is_the_recipe(tmp_path):
    """As a method of the comparison, a step of the protocol at a time."""
    found = table.read()
    entry = own.entry("digits", "optax_matrix:muoneq", 0.032)
    config = protocol.due(entry, found)
    short = dataclasses.replace(config, steps=20)
    named = dataclasses.replace(short, method="muoneq")
    assert runs.run(short).curve == runs.run(named).curve
    path = tmp_path / "mine.jsonl"
    results.append(config, made(config), path, "test")
    assert protocol.due(entry, own.read(path)) != config


def test_methods_of_the_catalogue_stand_beside_the_comparison(tmp_path):
    path, method = tmp_path / "catalogue.jsonl", "examples.catalogue.tuned:namo 0a1b"
    other = protocol.other("books", table.read())
    for seed in SEEDS:
        config = dataclasses.replace(other, method=method, rate=0.008, seed=seed)
        results.append(config, made(config, best=0.002), path, "test")
    lines = catalogue.report(path).splitlines()
    names = [line.split("`")[1] for line in lines if "`" in line]
    assert names == ["namo", "mousse", "soap", "muon", "muoneq", "adamw", "anvil"]
    assert lines[-1] == "Still to run: `anvil`, `conda`, `cosmos`, `muown`."
