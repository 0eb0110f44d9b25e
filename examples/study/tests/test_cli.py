"""The command line of the study, and the texts that quote it."""

import pathlib
import re
import subprocess
import sys

import pytest

from examples.study import cli

ROOT = pathlib.Path(__file__).parents[3]
QUOTED = re.compile(r"-m examples\.study(?:\s+([\w-]+)|\.\w+)")


def texts():
    """What may quote a command, by name."""
    patterns = ("*.md", ".github/*.md", "Makefile", "optax_matrix/**/*.py")
    patterns += ("examples/**/*.py", "examples/**/*.md", "notebooks/**/*.ipynb")
    patterns += (".docs/*.rst", ".docs/guides/*.rst")
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    here = pathlib.Path(__file__).parent
    return {path: path.read_text() for path in paths if path.parent != here}


STUDY = ROOT / "examples" / "study"
PAGES = [STUDY / "README.md", *sorted(STUDY.glob("pages/*.md"))]


@pytest.mark.parametrize("page", ["README.md", "pages/summary.md"])
def test_it_is_read_in_two_minutes(page):
    lines = (STUDY / page).read_text().splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 240  # A row of a table.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_exist(page):
    targets = re.findall(r"\]\(([^)#]+)", page.read_text())
    links = [target for target in targets if "://" not in target]
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_readme_has_every_page():
    linked = set(re.findall(r"\]\((pages/\w+\.md)\)", PAGES[0].read_text()))
    assert linked == {f"pages/{page.name}" for page in PAGES[1:]}


@pytest.mark.broad
def test_every_quoted_module_exists():
    text = "".join(texts().values())
    modules = set(re.findall(r"-m (examples\.\w+)", text))
    assert modules >= {"examples.study", "examples.pretrain", "examples.finetune"}
    is_module = lambda path: (path / "__main__.py").exists() or path.is_file()
    paths = {name: ROOT / name.replace(".", "/") for name in modules}
    assert not [
        name
        for name, path in paths.items()
        if not is_module(path) and not is_module(path.with_suffix(".py"))
    ]


def test_every_quoted_command_exists():
    found = [(p, m[1]) for p, text in texts().items() for m in QUOTED.finditer(text)]
    assert {command for _, command in found} >= cli.COMMANDS.keys()
    known = {*cli.COMMANDS, "COMMAND", "--help"}
    assert not [(str(p), command) for p, command in found if command not in known]


def test_a_quoted_report_is_of_one_kind():
    quoted = re.compile(r"-m examples\.study report((?: [\w:/.]+)+)")
    found = [m[1].split() for text in texts().values() for m in quoted.finditer(text)]
    assert ["bench:books"] in found
    kinds = [len({run.startswith("bench:") for run in runs}) for runs in found]
    assert kinds == [1] * len(found), found


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_says_what_it_does(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, "--help"])
    assert f"usage: python -m examples.study {command} " in capsys.readouterr().out


def test_the_list_has_every_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"\n  {command} " in printed for command in cli.COMMANDS)


def test_an_unknown_command_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bensh"])
    assert "invalid choice: 'bensh'" in capsys.readouterr().err


def test_the_list_imports_no_measurement():
    code = "import sys; from examples.study import cli; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
