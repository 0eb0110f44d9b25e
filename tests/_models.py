"""Public models whose leaves have known answers, and what the library makes of them."""

import functools
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from optax_matrix.matrices.decisions import decide
from optax_matrix.matrices.doubts import doubts, read_from_names
from optax_matrix.matrices.view import MatrixDimensionNumbers, make_view

FOLDER = Path(__file__).parent / "matrices" / "models"


def tables(names=("installed", "held_out")) -> dict[str, dict]:
    """Per model the entries ``path: (shape, dtype, answer, layer)``."""
    found = {}
    for name in names:
        if (file := FOLDER / f"{name}.json").exists():
            for model, entry in json.loads(file.read_text()).items():
                title = f"{model} ({entry['source']})"
                found[title] = {
                    path: (tuple(shape), dtype, answer, *(layer or [None]))
                    for path, (shape, dtype, answer, *layer) in entry["leaves"].items()
                }
    if "installed" not in names:
        return found
    spec = importlib.util.spec_from_file_location("written", FOLDER / "written.py")
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    for model, leaves in written.MODELS.items():
        found[model] = {
            path: (shape, "float32", answer, None)
            for path, (shape, answer) in leaves.items()
        }
    return found


def tree_of(entries):
    """The parameter tree, of dicts and stand-ins for the layers of Equinox."""
    tree = {}
    for path, (shape, dtype, _, layer) in entries.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        if layer is not None:
            node[None] = layer
    return _with_layers(tree)


def _with_layers(node):
    if not isinstance(node, dict):
        return node
    layer = node.pop(None, None)
    node = {name: _with_layers(child) for name, child in node.items()}
    return node if layer is None else layer_class(layer)(node)


@functools.cache
def layer_class(name):
    """A class of pytree nodes with the name and module of a layer of Equinox."""
    module, _, kind = name.rpartition(".")
    methods = {"__init__": lambda self, fields: self.__dict__.update(fields)}
    made = type(kind, (), methods | {"__module__": module})

    def children(x):
        keys = map(jax.tree_util.GetAttrKey, vars(x))
        return tuple(zip(keys, vars(x).values(), strict=True)), tuple(vars(x))

    rebuild = lambda names, xs: made(dict(zip(names, xs, strict=True)))
    jax.tree_util.register_pytree_with_keys(made, children, rebuild)
    return made


def view_of(answer, shape):
    """The view that an answer stands for; None for a leaf of the other optimizer."""
    if answer == "-":
        return None
    letters, _, sections = answer.partition("/")
    axes = lambda letter: tuple(a for a, x in enumerate(letters) if x == letter)
    sizes = tuple(map(int, sections.split(","))) if sections else (1,)
    numbers = MatrixDimensionNumbers(axes("i"), axes("o"), sizes[0])
    if len(sizes) > 1:
        numbers = MatrixDimensionNumbers(axes("i"), axes("o"), sizes)
    return make_view(shape, numbers)


def same(view, answer):
    """Whether two views have the same matrices, whatever axes of size one are."""
    if view is None or answer is None:
        return view is answer
    real = lambda axes: tuple(a for a in axes if view.shape[a] > 1)
    axes = lambda v: tuple(map(real, (v.output_axes, v.reduction_axes)))
    return axes(view) == axes(answer) and view.pieces == answer.pieces


def judged(entries):
    """Leaves that are wrong in silence, and those that are right or wrong but doubted.

    A leaf that is read as one matrix, although its answer has sections, is wrong. That
    `init` counts it among those that are read from names is enough of a word.
    """
    params = tree_of(entries)
    decisions = decide(params)
    doubted = doubts(params, decisions)
    counted = read_from_names(params, decisions)
    wrong, reported, needless = {}, {}, {}
    for path, (shape, _, answer, _) in entries.items():
        decision = decisions[path]
        right = same(decision.view, view_of(answer, shape))
        if path in doubted:
            (needless if right else reported)[path] = doubted[path]
        elif not right and path not in counted:
            shown = "no matrix" if decision.view is None else str(decision.view)
            wrong[path] = f"{shown} ({decision.reason}), not {answer!r} of {shape}"
    return wrong, reported, needless


if __name__ == "__main__":
    for model, entries in tables().items():
        wrong, reported, needless = judged(entries)
        print(f"{len(wrong)} {len(reported)} {len(needless)} {model}")
        for path, why in wrong.items():
            print("     ", path, why)
        for path in needless:
            print("      needless doubt:", path, needless[path])
