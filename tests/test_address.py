"""Texts that name the address of the repository have the one in pyproject.toml."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _load():
    spec = importlib.util.spec_from_file_location("address", ROOT / ".ci/address.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


address = _load()


def test_all_texts_have_the_address():
    texts = address.texts()
    old = [path.name for path, text in texts.items() if path.read_text() != text]
    assert not old, f"run `make address` to correct {old}"
    names = {path.name for path in texts}
    assert names >= {"README.md", "index.rst", "get_started.rst", "CITATION.cff"}
    assert sum(path.suffix == ".ipynb" for path in texts) == len(
        [*ROOT.glob("notebooks/**/*.ipynb")]
    )


def test_install_lines_have_no_other_address():
    """In every text for users, the address follows `git+`."""
    patterns = "README.md", ".docs/**/*.rst", "notebooks/**/*.ipynb", "examples/**/*.md"
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        for found in re.findall(r"git\+([^\s\"'`\\]+)", path.read_text()):
            assert found == address.address(), path


def test_another_address_is_written_everywhere(monkeypatch):
    new = "https://code.example.org/somebody/optax_matrix"
    monkeypatch.setattr(address, "address", lambda: new)
    for path, text in address.texts().items():
        assert new in text, path
        assert "ADDRESS-OF" not in text, path


@pytest.mark.parametrize(
    "wrong", ["git@code.example.org:a/b", "code.example.org/a/b", "https://a b", ""]
)
def test_an_address_that_could_not_be_replaced_again_is_refused(monkeypatch, wrong):
    """`make address` finds old addresses by https://, so it must not write others."""
    monkeypatch.setattr(address, "address", lambda: wrong)
    with pytest.raises(ValueError, match="must start with https://"):
        address.texts()
