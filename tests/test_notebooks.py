"""The notebooks run from top to bottom, and are committed as they ran."""

import ast
import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BOOKS = ROOT / "notebooks"
NOTEBOOKS = sorted(BOOKS.rglob("*.ipynb"))
LARGEST = 250_000  # bytes
# Their pictures are still of 72 or 80 dots per inch: running them takes the longest.

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = f"optax_matrix[notebooks] @ git+{PROJECT['urls']['Repository']}"
INSTALL = f"""SOURCE = "{SOURCE}"
try:
    import optax_matrix as om
except ModuleNotFoundError:
    %pip install -q "$SOURCE"
    try:
        import optax_matrix as om
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "optax_matrix could not be installed from SOURCE: upload the wheel that "
            "`make dist` builds, or find the address of the repository, and set SOURCE."
        ) from None
"""

every_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}"
)


def _code(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def _texts(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]


@pytest.fixture(scope="module")
def groups():
    """The folders that the documentation lists, in its order."""
    sys.path.insert(0, str(ROOT / ".docs"))
    import copies

    sys.path.remove(str(ROOT / ".docs"))
    return copies.GROUPS


def test_every_group_is_numbered_and_listed(groups):
    """First what a user needs; what is about papers has a folder."""
    assert [*groups] == [".", "papers"]
    assert {path.parent for path in NOTEBOOKS} == {BOOKS / group for group in groups}
    for group in groups:
        numbers = [path.stem[:3] for path in sorted((BOOKS / group).glob("*.ipynb"))]
        assert numbers == [f"{n:02}_" for n in range(1, len(numbers) + 1)]


def test_readers_of_papers_have_theirs_apart():
    names = lambda folder: [path.stem[3:] for path in sorted(folder.glob("*.ipynb"))]
    assert names(BOOKS) == [
        *("from_adamw_to_here", "when_it_does_not_help", "fine_tuning"),
        *("sharding", "experts_on_a_mesh", "building_blocks", "your_own_method"),
    ]
    assert names(BOOKS / "papers") == [
        *("five_papers", "from_fisher_to_optimizer", "spectra", "rotations"),
        *("subspaces", "orthogonal_training"),
    ]


PLACES = {
    path: path.read_text()
    for pattern in ("README.md", ".docs/**/*.rst", ".github/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
}
_FILE = re.compile(r"(?<![-\w])notebooks/((?:papers/)?\d\d_\w+)")


def test_texts_name_notebooks_that_exist():
    names = {str(path.relative_to(BOOKS).with_suffix("")) for path in NOTEBOOKS}
    named = {name for text in PLACES.values() for name in _FILE.findall(text)}
    assert named >= {"01_from_adamw_to_here", "papers/03_spectra"}
    assert named <= names


@every_notebook
def test_links_lead_to_files(path):
    targets = re.findall(r"\]\(([^)#]+)", "".join(_texts(path)))
    links = [target for target in targets if "://" not in target]
    assert not [link for link in links if not (path.parent / link).exists()]


_NUMBER = re.compile(r"[Nn]otebooks?\s+[`\[]*\d\d?\b|`0\d`")


def test_no_text_calls_a_notebook_by_its_number():
    """A number is another notebook's as soon as one is added; titles stay."""
    assert _NUMBER.search("Notebook `02` compares")
    assert _NUMBER.search("see [Notebook 01](01_a.ipynb) and [09](b.ipynb)")
    texts = [*PLACES.items(), *((path, "".join(_texts(path))) for path in NOTEBOOKS)]
    texts += [(path, path.read_text()) for path in ROOT.glob("optax_matrix/**/*.py")]
    assert not [path.name for path, text in texts if _NUMBER.search(text)]


IMPORTED = {"orbax-checkpoint": "orbax", "pillow": "PIL"}  # If not by their own names.


def _installed_with_the_wheel():
    """What `pip install "optax_matrix[notebooks]"` lets a notebook import."""
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + extras["notebooks"] + extras["examples"]
    # What JAX and matplotlib need themselves, without a marker.
    for name in ("jax", "matplotlib"):
        wanted += [line for line in metadata.requires(name) if ";" not in line]
    names = {re.match(r"[\w-]+", line)[0] for line in wanted}
    return {IMPORTED.get(name, name) for name in names} | sys.stdlib_module_names


def _imported(source):
    """The packages that a cell imports."""
    source = re.sub(r"%pip.*", "pass", source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@every_notebook
def test_the_wheel_alone_is_enough(path):
    """No module of the clone, and none that the extra `notebooks` leaves out."""
    code = _code(path)
    imported = {name for source in code for name in _imported(source)}
    assert {"optax_matrix", "jax"} <= imported
    assert imported <= _installed_with_the_wheel()
    assert not [source for source in code if re.search(r"\.\./|examples/", source)]


@every_notebook
def test_is_committed_executed(path):
    notebook = json.loads(path.read_text())
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    counts = [c["execution_count"] for c in cells]
    assert counts == list(range(1, len(cells) + 1)), "run it in one go"
    for output in (o for c in cells for o in c["outputs"]):
        assert output["output_type"] != "error", output["evalue"]
        assert output.get("name") != "stderr", output["text"]
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert path.stat().st_size < LARGEST


@every_notebook
def test_says_what_to_do_where_the_package_cannot_be_installed(path):
    """The first cell names its source once: the address that pyproject.toml has."""
    first = _code(path)[0]
    assert first.count(INSTALL) == 1
    assert first.count("SOURCE = ") == 1


def test_the_first_cell_without_the_package(monkeypatch):
    """It tries the address, and says in one sentence what to do."""
    tried = []
    cell = INSTALL.replace('%pip install -q "$SOURCE"', "tried.append(SOURCE)")
    monkeypatch.setitem(sys.modules, "optax_matrix", None)
    with pytest.raises(ModuleNotFoundError, match=r"`make dist` builds.* set SOURCE"):
        exec(cell, {"tried": tried})
    assert tried == [SOURCE]


@every_notebook
def test_pictures_have_alternative_texts_and_are_sharp(path):
    notebook = json.loads(path.read_text())
    assert 'plt.rcParams["figure.dpi"] = 120' in _code(path)[0]
    for cell in notebook["cells"]:
        outputs = cell.get("outputs", ())
        pictures = [o for o in outputs if "image/png" in o.get("data", ())]
        for picture in pictures:
            assert len(picture["metadata"]["image/png"]["alt"].split()) > 4


DRAW_METHODS = {
    *("from_adamw_to_here", "when_it_does_not_help", "fine_tuning"),
    *("experts_on_a_mesh", "building_blocks", "your_own_method", "five_papers"),
}
_COLOR = re.compile(r"""color["']?(?:=|: )["']([\w:#]+)["']""")


@every_notebook
def test_methods_have_one_look(path):
    """Notebooks that draw methods use the palette, and no colors beside it."""
    sources = _code(path)
    assert not [s for s in sources if '"black", "linewidth": 2.5' in s]
    draws = path.stem[3:] in DRAW_METHODS
    assert any("diagnostics.method_style" in s for s in sources) == draws
    found = {name for s in sources for name in _COLOR.findall(s)}
    assert not draws or found <= {"gray", "none"}


@pytest.mark.slow
@every_notebook
def test_runs(path, monkeypatch):
    # Out of the repository's root, where the package is found without installing it;
    # if it were not, pip would have no index to turn to.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=800,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    ).execute()
