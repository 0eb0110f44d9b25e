"""Writes the address of the repository into all texts that name it: `make address`.

The address is `Repository` in `[project.urls]` of pyproject.toml. Set it only there:
this program writes it into the README, the documentation, the notebooks and the
citation. A test compares them.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = "README.md", ".docs/*.rst", ".docs/guides/*.rst", "notebooks/**/*.ipynb"
CITATION = ".github/CITATION.cff"
_ADDRESS = r"https://[^\s\"'`\\]+"  # What an install line can have in quotes.
_INSTALL = re.compile(rf"(?<=git\+){_ADDRESS}")
_CITED = re.compile(r'(?<=^repository-code: ")[^"]*', re.MULTILINE)


def address() -> str:
    """The address in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["urls"]["Repository"]


def texts() -> dict[Path, str]:
    """The files that name the address, with the text that each should have.

    Raises:
        ValueError: If an install line cannot have the address.
    """
    here, found = address(), {}
    if not re.fullmatch(_ADDRESS, here):
        raise ValueError(
            "`Repository` in pyproject.toml must start with https:// and must have no "
            f"spaces, quotes or backslashes, got {here!r}; write what git clones from."
        )
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
