"""One rule says which learning rates to try, in the same words everywhere.

The rule is in `.docs/rate_rule.txt`. If you change it, change every text below.
"""

import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest
from _walks import walk

import optax_matrix as om

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / ".docs" / "guides"
plain = lambda text: " ".join(text.split())
RULE = plain((ROOT / ".docs" / "rate_rule.txt").read_text())
FACTORS = {1, 2, 4}  # Of the rule.
(FROM_ADAMW,) = ROOT.glob("notebooks/*from_adamw*.ipynb")


def _markdown(path):
    cells = json.loads(path.read_text())["cells"]
    return "\n".join(
        "".join(c["source"]) for c in cells if c["cell_type"] == "markdown"
    )


TEXTS = {
    "README": (ROOT / "README.md").read_text(),
    "home": (ROOT / ".docs" / "index.rst").read_text(),
    "get started": (GUIDES / "get_started.rst").read_text(),
    "questions": (GUIDES / "faq.rst").read_text(),
    "rates": (ROOT / "examples/study/pages/rates.md").read_text(),
    "docstring": om.recipes.__doc__,
    "notebook": _markdown(FROM_ADAMW),
}


def test_the_rule_has_its_factors():
    first, last = re.search(r"try (\d, \d) and (\d) times", RULE).groups()
    assert {int(x) for x in (*first.split(", "), last)} == FACTORS


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_that_advises_has_the_rule(name):
    assert RULE in plain(TEXTS[name]), f"write this rule: {RULE}"


def test_the_guide_to_rates_has_the_page_of_rates():
    included = ".. include:: ../results/rates.md"
    assert included in (GUIDES / "learning_rates.rst").read_text()


def _every_text():
    """What users read: texts, notebooks, and the docstrings of all modules."""
    patterns = (
        "README.md",
        ".docs/*.rst",
        ".docs/guides/*.rst",
        "examples/study/**/*.md",
    )
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        yield path.name, path.read_text()
    for path in ROOT.glob("notebooks/**/*.ipynb"):
        yield path.name, _markdown(path)
    for module in pkgutil.walk_packages(om.__path__, "optax_matrix."):
        if "adapters" not in module.name:
            yield module.name, importlib.import_module(module.name).__doc__ or ""
    for name in om.recipes.__all__:
        yield name, getattr(om, name).__doc__ or ""


# Rules that texts had before.
OTHER = re.compile(
    r"(?:begin|start|first try)\b[^.]{0,20}\b"
    r"(?:twice|(?:two|three|four|eight|ten|\d+) times)\W+(?:the |your )?(?:rate|AdamW)"
)


def test_no_text_has_another_rule():
    assert OTHER.search("begin at four times AdamW's rate")
    assert OTHER.search("begin at **four times** the rate that you use")
    for name, text in _every_text():
        assert not OTHER.search(plain(text)), name


EXAMPLES = [ROOT / "README.md", ROOT / ".docs" / "index.rst", *GUIDES.glob("*.rst")]
_PAIR = re.compile(
    r"om\.(?:muoneq|soap|aro|mousse)\((?:\w+\()?(\d+ \* \w+|[\d.e-]+)\)?, "
    r"other_learning_rate=(?:\w+\()?([\d.e-]+|\w+)"
)


def _factors(text):
    for rate, other in _PAIR.findall(text):
        if "*" in rate:
            yield float(rate.split()[0])
        else:
            yield round(float(rate) / float(other), 6)


def test_pairs_of_rates_are_found():
    shown = "om.muoneq(cosine(4e-2), other_learning_rate=cosine(1e-2))"
    assert [*_factors(shown)] == [4]
    assert [*_factors("om.soap(10 * rate, other_learning_rate=rate)")] == [10]


@walk("path", EXAMPLES)
def test_examples_have_a_factor_of_the_rule(path):
    shown = path.read_text()
    assert {*_factors(shown)} <= FACTORS
    if path.name in {"README.md", "index.rst", "choose.rst"}:
        assert [*_factors(shown)]
