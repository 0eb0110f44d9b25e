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
    patterns += ("examples/**/*.py", "examples/**/*.md", "notebooks/*.ipynb")
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    here = pathlib.Path(__file__).parent
    return {path: path.read_text() for path in paths if path.parent != here}


def test_every_quoted_command_exists():
    found = [(p, m[1]) for p, text in texts().items() for m in QUOTED.finditer(text)]
    assert {command for _, command in found} >= cli.COMMANDS.keys()
    known = {*cli.COMMANDS, "COMMAND", "--help"}
    assert not [(str(p), command) for p, command in found if command not in known]


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
