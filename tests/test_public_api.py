"""Public names: listed and documented."""

import inspect
import re

import pytest
from _walks import walk

import optax_matrix as om

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


def test_a_name_of_a_package_is_named_with_it():
    with pytest.raises(AttributeError, match=r"is `om.transforms.compress_entries`"):
        om.compress_entries  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        om.no_such_name  # noqa: B018
    assert not hasattr(om, "compress_entries")
