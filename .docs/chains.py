"""The catalogue: the page of ``examples.catalogue``, from its docstrings and code."""

import ast
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

from rst import title

from examples.catalogue import GROUPS, Method
from examples.catalogue.authors import PROGRAMS

PAGE = Path(__file__).parent / "catalogue.rst"
_FIRST = """
Published methods as one expression each. They are no recipes: ``examples/catalogue``
has them beside a restatement in NumPy, and ``python -m examples.catalogue`` prints how
far they are from it. ``python -m examples.catalogue.programs`` compares those that say
so with the program of their authors. Take one as the start of yours:

>>> import jax.numpy as jnp
>>> from examples import catalogue
>>> from examples.build_your_own import optimizer
>>> tx = optimizer(catalogue.METHODS["anvil"].make(), learning_rate=0.01)
>>> state = tx.init({"kernel": jnp.ones((3, 5)), "bias": jnp.ones(5)})

M is the momentum, G the gradient, W the weights, N(X) is X at norm one, and msign(X)
the polar factor of X, by a singular value decomposition: put `linalg.newton_schulz` in
its place to train. The methods are grouped by what they need.
"""


def setup(app: Any) -> dict[str, Any]:
    """Writes the page before Sphinx reads."""
    app.connect("builder-inited", lambda _: PAGE.write_text(page()))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def page() -> str:
    """The whole page."""
    parts = [title("Catalogue of chains"), _FIRST]
    for needs, methods in GROUPS.items():
        module = sys.modules[next(iter(methods.values())).make.__module__]
        parts += ["", title(needs.capitalize(), "-"), inspect.getdoc(module) or "", ""]
        parts += [_entry(method, vars(module)) for method in methods.values()]
    return "\n".join(parts)


def _entry(method: Method, module: dict[str, Any]) -> str:
    head, _, text = (inspect.getdoc(method.make) or "").partition("\n\n")
    name, _, what = head.partition(":")
    says = what.strip().capitalize().replace("\n", " ")
    code = textwrap.indent(_code(method.make, module), "   ")
    block = f".. code-block:: python\n\n{code}"
    text += _program(method.make.__name__)
    return "\n".join([title(name, "~"), says, "", text, "", block, ""])


def _program(name: str) -> str:
    """A sentence on the program that the method is compared with, if there is one."""
    if name not in PROGRAMS:
        return ""
    program = PROGRAMS[name]
    link = f"`{program.repository} <https://github.com/{program.repository}>`__"
    where = f"``{program.module}`` of {link} at ``{program.at[:18]}``"
    if program.was_run:
        return f" Compared with {where}."
    return f" Not yet compared with {where}."


def _code(make: Any, module: dict[str, Any]) -> str:
    """The function without its docstring, behind those that it uses."""
    source = textwrap.dedent(inspect.getsource(make))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    lines = source.splitlines()
    first, start = function.lineno - 1, function.body[1].lineno - 1
    own = "\n".join([lines[first], *lines[start:]])
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    helpers = [
        inspect.getsource(x)
        for name, x in module.items()
        if name in used and name.startswith("_") and inspect.isfunction(x)
    ]
    return "\n\n".join([*map(str.rstrip, helpers), own])
