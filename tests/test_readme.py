"""The README is short, its code runs as it stands, and its linked files exist.

Also tested here are the home page of the documentation, which has a complete run, and
the table of all methods, which both link to.
"""

import ast
import functools
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import optax_matrix as om

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
HOME = (ROOT / ".docs" / "index.rst").read_text()
TABLE = (ROOT / ".docs" / "methods.md").read_text()
SCRIPT = ast.parse((ROOT / "examples" / "quickstart.py").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_it_is_short_and_has_every_section():
    assert len(README.splitlines()) <= 110
    assert README.count("![") == 1
    parts = re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert parts == [
        *("Install", "Change two lines", "Tune one number", "What to expect"),
        *("Which method", "What it does", "Where to go next"),
    ]
    doors = re.findall(r"^- \*\*(Train|Scale|Research)\.\*\*", README, re.MULTILINE)
    assert doors == ["Train", "Scale", "Research"]


def test_linked_files_exist():
    targets = re.findall(r"\]\(([^)#]+)", README)
    links = [target for target in targets if "://" not in target]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


def test_it_counts_the_methods():
    """Three are named and the others counted, as on the home page."""
    count = sum(map(len, om.recipes.METHODS.values()))
    for text in (README, HOME):
        assert f"Muon, SOAP, ARO and {count - 3} more matrix optimizers" in text


def test_versions_and_decays_are_those_of_the_packages():
    lowest = dict(x.split(">=") for x in PROJECT["dependencies"] if ">=" in x)
    says = f"JAX {lowest['jax']} or later and optax {lowest['optax']} or later"
    assert says in " ".join(README.split())
    default = inspect.signature(om.muoneq).parameters["weight_decay"].default
    adamw = inspect.signature(optax.adamw).parameters["weight_decay"].default
    assert f"(`muoneq` {default:g}" in README
    assert float(re.search(r"`optax.adamw` ([\de-]+)\)", README)[1]) == adamw


def test_every_other_number_is_made_from_runs():
    """Outside of generated blocks are rates of the example, versions, and counts."""
    text = re.sub(r"<!-- bench: .*?<!-- /bench -->", "", README, flags=re.DOTALL)
    text = re.sub(
        r"\((?:http|notebooks/)\S+\)|```bibtex.*?```", "", text, flags=re.DOTALL
    )
    rule = (ROOT / ".docs" / "rate_rule.txt").read_text().strip()
    assert rule in text
    numbers = re.findall(r"(?<![\w.])\d[\d.e-]*", text.replace(rule, ""))
    known = {"3.11", "3.13", "0.8.1", "0.2.6", "0.1", "1e-4", "3e-3", "6e-3", "37"}
    known.add("2.0.")  # Of the license.
    assert not {*numbers} - known


@pytest.mark.broad
def test_changed_lines_make_an_optimizer():
    (block,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)
    new = "\n".join(line[1:] for line in block.splitlines() if line[0] != "-")
    old = "\n".join(line[1:] for line in block.splitlines() if line[0] == "-")
    scope = {"optax": optax, "nnx": nnx, "model": nnx.Linear(4, 8, rngs=nnx.Rngs(0))}
    scope["schedule"] = lambda peak: optax.cosine_decay_schedule(peak, 10)
    exec(old, scope)
    before = scope["tx"]
    exec(new, scope)
    assert scope["tx"] is not before
    grads = jax.tree.map(jnp.ones_like, nnx.state(scope["model"], nnx.Param))
    old_bias = scope["model"].bias[...]
    scope["optimizer"].update(scope["model"], grads)
    step = scope["model"].bias[...] - old_bias
    assert jnp.allclose(step, -3e-3, rtol=1e-3)  # The second rate, by AdamW.


def test_names_in_the_text_exist():
    code = re.findall(r"\b(om\.[\w.]*\w)", README)
    assert {"om.describe", "om.matrices.by_use", "om.owners"} <= {*code}
    for name in code:
        functools.reduce(getattr, name.split(".")[1:], om)


# The home page of the documentation has the complete run.


def test_home_has_the_install_line_and_the_script():
    assert 'pip install "optax_matrix[examples] @ git+' in HOME
    assert 'pip install "optax_matrix[examples] @ git+' in README
    assert ".. literalinclude:: ../examples/quickstart.py" in HOME
    assert "examples/quickstart.py" in README


def test_the_script_imports_what_the_install_line_installs():
    extra = PROJECT["optional-dependencies"]["examples"]
    installed = {
        re.match(r"[\w-]+", requirement)[0].replace("-", "_")
        for requirement in [*PROJECT["dependencies"], *extra, PROJECT["name"]]
    }
    nodes = [*ast.walk(SCRIPT)]
    names = {a.name for x in nodes if isinstance(x, ast.Import) for a in x.names}
    names |= {x.module for x in nodes if isinstance(x, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= installed


@pytest.mark.broad
def test_the_complete_run_prints_what_home_shows():
    """MuonEq's loss is the smaller one."""
    shown = re.findall(r"^   (AdamW|MuonEq) +(0\.\d+)$", HOME, re.MULTILINE)
    assert [name for name, _ in shown] == ["AdamW", "MuonEq"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.quickstart"],
        cwd=ROOT,
        env={k: x for k, x in os.environ.items() if k != "XLA_FLAGS"}
        | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert losses == pytest.approx([float(loss) for _, loss in shown], rel=0.05)
    assert losses[1] < 0.8 * losses[0]


def test_table_has_every_recipe_in_its_group():
    line = re.compile(r"^\| (?:`(\w+)` \| .* \| \[|\*\*(.+)\*\* \|)", re.MULTILINE)
    found = {}
    for method, group in line.findall(TABLE):
        if group:
            found[group] = names = []
        else:
            names.append(method)
    assert found == {
        group: [recipe.__name__ for recipe in recipes]
        for group, recipes in om.recipes.METHODS.items()
    }
