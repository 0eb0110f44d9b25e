"""The README is short, its code runs as it stands, and its links lead somewhere."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import optax_matrix as om

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
NAMES = ["quick start", "own method", "sharded models"]
SCRIPT = ast.parse((ROOT / "examples" / "quickstart.py").read_text())


def _after(block, more, tmp_path):
    """What a fresh process prints that runs a block, and then some more."""
    file = tmp_path / "block.py"
    file.write_text(f"{block}\n{more}")
    environment = {k: x for k, x in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", file],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_read_in_five_minutes():
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(prose) <= 160, "shorten the README; rows of its tables do not count"
    assert len(BLOCKS) == len(NAMES)


def test_linked_files_exist():
    targets = re.findall(r"\]\(([^)#]+)", README)
    links = [target for target in targets if "://" not in target]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_blocks_import_what_the_install_line_installs(block):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "pip install '.[examples]'" in README
    extra = project["optional-dependencies"]["examples"]
    installed = {
        re.match(r"[\w-]+", requirement)[0].replace("-", "_")
        for requirement in [*project["dependencies"], *extra, project["name"]]
    }
    nodes = [x for x in ast.walk(ast.parse(block)) if isinstance(x, ast.Import)]
    names = {alias.name for node in nodes for alias in node.names}
    froms = [x for x in ast.walk(ast.parse(block)) if isinstance(x, ast.ImportFrom)]
    names |= {node.module for node in froms}
    assert {name.partition(".")[0] for name in names} <= installed


def test_the_quick_start_is_the_script():
    """Statement by statement, but for docstrings and the guard of the last ones."""
    *body, main = SCRIPT.body[1:]
    assert isinstance(main, ast.If)
    for function in (x for x in body if isinstance(x, ast.FunctionDef)):
        if ast.get_docstring(function):
            del function.body[0]
    script = [ast.unparse(node) for node in (*body, *main.body)]
    assert [ast.unparse(node) for node in ast.parse(BLOCKS[0]).body] == script


@pytest.mark.broad
def test_quick_start_wins(tmp_path):
    """It prints the losses that the README shows, and MuonEq's is the smaller one."""
    more = """
model, batch = autoencoder(nnx.Rngs(0)), batch(jax.random.key(0))
rule = om.matrices.by_use(loss, model, batch)
print(rule)
tx = om.muoneq(1e-2, dimension_numbers=rule)
"""
    assert more.splitlines()[2] in README
    printed = _after(BLOCKS[0], more, tmp_path).splitlines()
    printed, table = printed[:2], printed[2:]
    shown = re.findall(r"`(AdamW|MuonEq) +(0\.\d+)`", README)
    assert [name for name, _ in shown] == ["AdamW", "MuonEq"]
    losses = [float(line.split()[1]) for line in printed]
    assert losses == pytest.approx([float(loss) for _, loss in shown], rel=0.05)
    assert losses[1] < 0.8 * losses[0]
    assert table[0].split() == ["leaf", "shape", "use", "verdict"]
    verdicts = {line.split()[0]: line.split("  ")[-1] for line in table[1:]}
    assert verdicts["layers/2/kernel"].startswith("matrix (0, 1")
    assert verdicts["layers/6/kernel"].startswith("last layer")


@pytest.mark.broad
def test_own_method(tmp_path):
    more = """
import jax.numpy as jnp
params = {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}
updates, _ = tx.update(params, tx.init(params), params)
print(float(jnp.sqrt(jnp.mean(updates["kernel"] ** 2))), *updates["bias"].tolist())
"""
    rms, *bias = map(float, _after(BLOCKS[1], more, tmp_path).split())
    assert rms == pytest.approx(0.2 * 3e-3, rel=1e-3)
    assert bias == pytest.approx([-3e-3] * 5, rel=1e-3)  # Adam's first step.


@pytest.mark.broad
def test_sharded_models(tmp_path):
    more = """
assert jax.typeof(updates["kernel"]) == jax.typeof(params["kernel"])
stacks = [x for x in jax.tree.leaves(opt_state) if x.ndim == 3]
print(len(jax.devices()), *{x.sharding.spec[0] for x in stacks})
"""
    printed = _after(BLOCKS[2], more, tmp_path)
    assert printed == "8 ('fsdp', 'tp')\n"


def test_table_has_every_recipe_in_its_group():
    line = re.compile(r"^\| (?:`(\w+)` \| .* \| \[|\*\*(.+)\*\* \|)", re.MULTILINE)
    found = {}
    for method, group in line.findall(README):
        if group:
            found[group] = names = []
        else:
            names.append(method)
    assert found == {
        group: [recipe.__name__ for recipe in recipes]
        for group, recipes in om.recipes.METHODS.items()
    }
