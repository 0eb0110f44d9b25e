"""The README is short, its code runs as it stands, and its links lead somewhere."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_matrix as om

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def _block(word):
    (block,) = (b for b in BLOCKS if word in b)
    return block


def test_it_is_read_in_five_minutes():
    assert len(README.splitlines()) <= 220


def test_linked_files_exist():
    targets = re.findall(r"\]\(([^)#]+)", README)
    links = [target for target in targets if "://" not in target]
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


@pytest.mark.broad
def test_quick_start_learns_and_describes_itself(capsys):
    scope = {}
    exec(_block("class MLP"), scope)
    assert scope["loss"] < 0.7
    shown = re.search(r"```\n(leaf .*?)\n\.\.\.\n```", README, re.DOTALL)[1]
    # `describe` is a table; the README shows its first lines.
    assert shown in capsys.readouterr().out


@pytest.mark.broad
def test_own_method():
    scope = {"optax": optax, "om": om}
    exec(_block("balanced_muon"), scope)
    params = {"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)}
    updates, _ = scope["tx"].update(params, scope["tx"].init(params))
    rms = jnp.sqrt(jnp.mean(updates["kernel"] ** 2))
    assert rms == pytest.approx(0.2 * 3e-3, rel=1e-3)
    assert updates["bias"] == pytest.approx(-3e-3, rel=1e-3)  # Adam's first step.


def test_sharded_models(cpus):
    assert len(cpus) == 8
    scope = {"jax": jax, "jnp": jnp, "om": om}
    exec(_block("make_mesh"), scope)
    params, state, updates = (scope[n] for n in ("params", "opt_state", "updates"))
    assert jax.typeof(updates["up"]) == jax.typeof(params["up"])
    stacks = [x for x in jax.tree.leaves(state) if x.ndim == 3]
    assert [x.sharding.spec[0] for x in stacks] == [("fsdp", "tp")]


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
