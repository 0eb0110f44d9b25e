"""Writes the address of the repository into all texts that name it: `make address`.

The address is `Repository` in `[project.urls]` of pyproject.toml, and stands nowhere
else by hand: README, documentation, notebooks and citation get it from here. A test
compares them.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = "README.md", ".docs/*.rst", ".docs/guides/*.rst", "notebooks/*.ipynb"
CITATION = ".github/CITATION.cff"
_INSTALL = re.compile(r"(?<=git\+)https://[^\s\"'`\\]+")
_CITED = re.compile(r'(?<=^repository-code: ")[^"]*', re.MULTILINE)


def address() -> str:
    """The address that pyproject.toml has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["urls"]["Repository"]


def texts() -> dict[Path, str]:
    """The files that name the address, as they should be."""
    here, found = address(), {}
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            if _INSTALL.search(text := path.read_text()):
                found[path] = _INSTALL.sub(here, text)
    cited = ROOT / CITATION
    found[cited] = _CITED.sub(here, cited.read_text())
    return found


if __name__ == "__main__":
    for path, text in texts().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: {address()}")
