"""Functions that a notebook defines, without running the notebook."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp

import optax_matrix as om

ROOT = Path(__file__).parents[1] / "notebooks"


def definitions(notebook, *names):
    """The functions and constants of these names, in the order of the cells."""
    cells = json.loads((ROOT / f"{notebook}.ipynb").read_text())["cells"]
    found = {"om": om, "jax": jax, "jnp": jnp}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or "%pip" in source:
            continue
        wanted = [node for node in ast.parse(source).body if _name(node) in names]
        exec(compile(ast.Module(wanted, []), notebook, "exec"), found)
    return SimpleNamespace(**{name: found[name] for name in names})


def _name(node):
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", None)
