"""Public names: listed and documented."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _walks import walk

import optax_matrix as om

ROOT = Path(om.__file__).parents[1]

PACKAGES = (
    om,
    om.checkpoint,
    om.diagnostics,
    om.linalg,
    om.matrices,
    om.quantization,
    om.transforms,
    om.recipes,
    om.sharding,
    om.stacks,
    om.tree,
    om.tuning,
    om.weights,
)
FUNCTIONS = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
}


@walk("package", PACKAGES)
def test_all_is_true(package):
    for name in package.__all__:
        assert hasattr(package, name)


@walk("name", FUNCTIONS)
def test_docstring_has_its_sections(name):
    doc = _with_references(inspect.getdoc(FUNCTIONS[name]))
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    assert "Args:" in doc or not parameters
    for parameter in parameters:
        assert f"{parameter}:" in doc, f"{parameter} is not documented"


def _with_references(doc):
    """A docstring with those where it says that its arguments are explained."""
    for base in re.findall(r"\*\*options: Those of `(\w+)`", doc):
        doc += _with_references(inspect.getdoc(getattr(om, base)))
    if "**common: Keywords of every recipe, see `optax_matrix.recipes`." in doc:
        doc += om.recipes.__doc__.replace("``:", ":")
    return doc


@walk("name", om.recipes.__all__)
def test_recipe_has_an_example(name):
    assert ">>>" in inspect.getdoc(getattr(om.recipes, name))


def _recipes():
    return [n for n in om.recipes.__all__ if hasattr(om.recipes, f"scale_by_{n}")]


@walk("name", _recipes())
def test_recipe_takes_the_common_keywords(name):
    common = {
        "weight_decay",
        "weight_decay_mask",
        "dimension_numbers",
        "placement",
        "max_batch",
        "other",
        "other_learning_rate",
        "other_weight_decay",
        "nonfinite",
        "zero_gradient",
        "mu_dtype",
    }
    parameters = inspect.signature(getattr(om, name)).parameters
    assert common <= set(parameters)
    first, *rest = parameters.values()
    assert first.name == "learning_rate"
    assert all(p.kind is p.KEYWORD_ONLY for p in rest)


@walk(("package", "name"), [(x, name) for x in PACKAGES for name in x.__all__])
def test_public_name_is_in_the_api_reference(package, name):
    """The reference shows the docstring, or the comment above a constant."""
    value = getattr(package, name)
    if inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value):
        assert inspect.getdoc(value)


PLACES = {
    "checkpoint": "reset_state",
    "diagnostics": "state_bytes",
    "linalg": "newton_schulz",
    "quantization": "quantize_state",
    "transforms": "whiten",
    "tree": "OnMatricesState",
    "tuning": "Sweep",
    "weights": "hyperball",
}


def test_a_name_of_a_package_is_named_with_it():
    for package, name in PLACES.items():
        assert hasattr(getattr(om, package), name)
        assert not hasattr(om, name)
        with pytest.raises(
            AttributeError, match=f"`om.{name}` is `om.{package}.{name}`"
        ):
            getattr(om, name)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        om.no_such_name  # noqa: B018


def _texts_for_users():
    yield ROOT / "README.md"
    yield from (ROOT / ".docs" / "guides").glob("*.rst")
    yield from (ROOT / "notebooks").rglob("*.ipynb")
    yield from (ROOT / "examples").glob("*.py")
    yield from (ROOT / "optax_matrix" / "adapters").glob("*.py")


def test_names_at_the_top_are_those_that_users_read():
    assert len(om.__all__) == len({*om.__all__})
    text = "".join(path.read_text() for path in _texts_for_users())
    used = {*re.findall(r"\b(?:om|optax_matrix)\.(\w+)", text), *om.recipes.__all__}
    packages = {name for name in om.__all__ if inspect.ismodule(getattr(om, name))}
    rare = {*om.__all__} - used - packages
    assert not rare, f"leave them in their packages: {rare}"


LATER = {
    "checkpoint": "to_portable",
    "diagnostics": None,
    "quantization": "adamw_8bit",
    "tuning": "sweep",
    "weights": "average_weights",
}
FIRST_USE = """
import pickle, sys
import optax_matrix as om

def packages():
    return {name.split(".")[1] for name in sys.modules if "optax_matrix." in name}

later = %r
assert not packages() & {*later}, packages()
assert not {"jax.extend", "jax.experimental.pallas"} & {*sys.modules}
assert not {"rich", "matplotlib", "flax"} & {*sys.modules}
assert {*om.__all__, "__doc__"} <= {*dir(om)}
for package, name in later.items():
    used = getattr(om, name or package)
    assert package in packages()
    if name is None:
        assert used is sys.modules["optax_matrix." + package]
    else:
        assert used is getattr(sys.modules["optax_matrix." + package], name)
        assert pickle.loads(pickle.dumps(used)) is used
    assert (name or package) in vars(om)
from optax_matrix import *
assert {*om.__all__} <= {*globals()}
"""


@pytest.mark.broad
def test_packages_that_few_need_load_when_they_are_first_used():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_USE % LATER],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_names_that_load_later_are_those_of_their_package():
    for package, names in om._LATER.items():
        module = getattr(om, package)
        assert {package, *names} <= {*om.__all__}
        for name in names:
            assert getattr(om, name) is getattr(module, name)
