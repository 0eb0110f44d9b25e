"""A user's own optimizer in the bench, from a module outside of the repository."""

import dataclasses
import json
import math
import re
import sys

import jax.numpy as jnp
import optax
import pytest

from examples.pretrain import user
from examples.pretrain.errors import UserError
from examples.study.bench import cli, plot, results
from examples.study.bench.config import Config, Result
from examples.study.bench.methods import find
from examples.study.bench.runs import run
from examples.study.bench.search import SEEDS, TUNING, due
from examples.study.bench.tasks import TASKS
from examples.study.report.cli import main as report

# Its first convolution has one channel, and AdamW on purpose.
STEM = pytest.mark.filterwarnings("ignore:Check how these parameters")

ARENA = TASKS["digits"].arena
MODULE = """
import optax


def make(learning_rate, b1=0.9):
    return optax.sgd(learning_rate, momentum=b1)


def matrices(learning_rate, dimension_numbers="none"):
    assert dimension_numbers != "none"
    return optax.sgd(learning_rate)


def late(learning_rate, momentum):
    return optax.sgd(learning_rate)


def number(learning_rate):
    return optax.sgd(learning_rate * 2)


def nothing(learning_rate):
    return None


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


@pytest.fixture
def counted(monkeypatch):
    """Runs whose losses are made by hand, in this process."""
    done = []

    def run_all(entries, path, count, command, _):
        assert count >= 1
        for entry in entries:
            find(entry.method, entry.setting, TASKS[entry.task].arena)
            while config := due(entry, results.read(path)):
                loss = 1 + math.log2(config.rate / 0.004) ** 2 + config.seed / 1e4
                loss -= config.setting.startswith("user")
                curve = [[0, 9.0], [config.steps, loss]]
                one = Result(loss, curve, 1.0, 2048, 1.0)
                results.append(config, one, path, command)
                done.append(config)

    monkeypatch.setattr(cli, "run_all", run_all)
    return done


def trial(path, *arguments):
    return cli.main(["try", *arguments, "--results", str(path)])


def test_it_is_compared_with_named_methods(tmp_path, counted, capsys):
    path = tmp_path / "runs" / "mine.jsonl"
    study = results.PATH.read_bytes()
    names = ("mine_of_a_user:make", "mine_of_a_user:make:b1=0.5")
    against = ("--tasks", "books", "digits", "--against", "muon", "--fresh")
    assert trial(path, *names, *against) == 0
    assert results.PATH.read_bytes() == study
    assert len(results.read(path)) == len(counted)
    for task in ("books", "digits"):
        got = {c.method: c for c in counted if c.task == task and c.seed == SEEDS[0]}
        assert list(got) == ["adamw", "muon", *names]
        assert {c.rate for c in got.values()} == {0.004}  # The best of those tried.
        tried = [c for c in counted if (c.task, c.method) == (task, names[0])]
        assert sum(c.seed == TUNING for c in tried) == 5
        assert [c.seed for c in tried if c.seed != TUNING] == [*SEEDS]
    printed = capsys.readouterr().out
    assert printed.index("books: tiny LLaMA") < printed.index("digits: vision")
    version = user.setting(names[0])
    assert f"| `{names[0]}` | {version} | 0.004 | 0.0002 ± 0.0002 | -1.0000 ± " in (
        printed
    )
    row = json.loads(path.read_text().splitlines()[-1])
    command = f"python -m examples.study bench try {' '.join(names)}"
    assert row["where"]["command"] == command


@pytest.mark.broad
def test_finished_runs_are_kept_and_those_of_the_study_are_copied(tmp_path, counted):
    path = tmp_path / "mine.jsonl"
    assert trial(path, "mine_of_a_user:make") == 0
    assert {c.method for c in counted} == {"mine_of_a_user:make"}
    copied = {c: r for c, r in results.read(path).items() if c not in counted}
    assert {c.method for c in copied} == {"adamw", "muon"}
    there = results.read()
    assert all(there[config] == result for config, result in copied.items())
    origins = results.origins()
    assert all(results.origins(path)[config] == origins[config] for config in copied)
    counted.clear()
    assert trial(path, "mine_of_a_user:make") == 0
    assert not counted


@pytest.mark.broad
@pytest.mark.usefixtures("counted")
def test_table_page_and_picture_have_its_last_version(tmp_path, capsys, module):
    path, name = tmp_path / "mine.jsonl", "mine_of_a_user:make"
    assert trial(path, name) == 0
    module.write_text(MODULE + "\n# Changed.\n")
    assert trial(path, name, "--rate", "0.002") == 0
    version = user.setting(name)
    capsys.readouterr()
    given = ("books", "--results", str(path))
    assert cli.main(["table", *given]) == 0
    (row,) = (x for x in capsys.readouterr().out.splitlines() if name in x)
    assert row.startswith(f"| `{name}` | {version} | 0.004 | ")
    page, folder = tmp_path / "page.html", tmp_path / "of" / "pictures"
    assert report(["bench:books", *given[1:], "--out", str(page)]) == 0
    assert f">{name}<" in page.read_text()
    assert cli.main(["plot", *given, "--out", str(folder)]) == 0
    _, others = plot.shown("books", results.read(path))
    assert [row.entry.setting for row in others].count(version) == 1
    assert (folder / "books.png").stat().st_size > 10_000


@pytest.mark.broad
def test_runs_of_a_changed_file_do_not_count(tmp_path, counted, module):
    path = tmp_path / "mine.jsonl"
    assert trial(path, "mine_of_a_user:make") == 0
    first = [*counted]
    counted.clear()
    module.write_text(MODULE + "\n# Changed.\n")
    assert trial(path, "mine_of_a_user:make") == 0
    assert [c.rate for c in counted] == [c.rate for c in first]
    assert not {*counted} & {*first}


def test_a_method_that_cannot_be_matched_has_its_own_size(tmp_path, counted):
    path = tmp_path / "mine.jsonl"
    assert trial(path, "mine_of_a_user:make", "--against", "racs", "muon") == 0
    assert {c.method for c in counted} == {"mine_of_a_user:make"}
    found = {(c.method, c.setting) for c in results.read(path) if c not in counted}
    assert found == {("adamw", "matched"), ("racs", "own"), ("muon", "matched")}


def test_the_first_rate_may_be_given(tmp_path, counted):
    path = tmp_path / "mine.jsonl"
    assert trial(path, "mine_of_a_user:make", "--rate", "0.5") == 0
    assert counted[0].rate == 0.5


def test_options_and_the_tasks_dimension_numbers_reach_the_function():
    assert find("mine_of_a_user:matrices", "user", ARENA)(optax.constant_schedule(0.1))
    method = find("mine_of_a_user:make:b1=0.5", "user", ARENA)
    assert dict(method.options) == {"b1": 0.5}


@pytest.mark.broad
def test_the_module_of_the_readme_makes_an_optimizer(tmp_path):
    text = (results.PATH.parents[1] / "README.md").read_text()
    block = r"```python\n# my_module\.py.*?\n(.*?)```"
    (module,) = re.findall(block, text, re.DOTALL)
    (tmp_path / "of_the_readme.py").write_text(module)
    method = find("of_the_readme:make:b1=0.9", "user", TASKS["books"].arena)
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
        ("mine_of_a_user:make:b2=1", "make has no option 'b2'; its options: b1"),
    ],
)
def test_mistakes_get_one_line(tmp_path, capsys, counted, name, message):
    with pytest.raises(UserError, match=message):
        find(name, "user", ARENA)
    assert trial(tmp_path / "mine.jsonl", name) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not counted
    assert not (tmp_path / "mine.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--results", str(results.PATH)), "must be a file of your own"),
        (("--rate", "-1"), "--rate must be positive, got -1.0"),
        (("--processes", "0"), "--processes must be positive, got 0"),
        (("--against", "muonn"), "There is no optimizer 'muonn'"),
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
def test_a_recipe_by_its_path_is_the_recipe():
    config = Config("digits", "muoneq", "matched", 2e-3, 0, 20, 4)
    name = "optax_matrix:muon"
    by_path = dataclasses.replace(config, method=name, setting=user.setting(name))
    own = dataclasses.replace(config, method="muon", setting="own")
    assert run(by_path).curve == run(own).curve != run(config).curve


@pytest.mark.slow
def test_processes_find_the_module(tmp_path, monkeypatch, capsys):
    small = dataclasses.replace(TASKS["digits"], steps=20, batch=4)
    monkeypatch.setitem(TASKS, "digits", small)
    path = tmp_path / "mine.jsonl"
    name = "mine_of_a_user:make"
    command = (name, "--tasks", "digits", "--against", "--fresh", "--rate", "0.1")
    assert trial(path, *command) == 0
    rows = capsys.readouterr().out.splitlines()
    assert any(row.startswith(f"| `{name}` | user ") for row in rows)
    assert {c.method for c in results.read(path)} == {"adamw", name}
