"""Pages whose source is elsewhere: notebooks, pages of the study, the changelog.

They are copied next to the other pages. A link to a file that has a page here becomes a
link to that page; other files of the repository are named, without a link.
"""

import base64
import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

import optax_matrix as om

HERE = Path(__file__).parent
ROOT = HERE.parent
BOOKS = ROOT / "notebooks"
GROUPS = {  # Folder of `notebooks`: title, and for whom it is.
    ".": ("Your own model", "Each answers one question. Start with the first."),
    "papers": ("Papers", "Figures and claims of five papers, at a small size."),
}
NOTEBOOKS = [path for name in GROUPS for path in sorted((BOOKS / name).glob("*.ipynb"))]
STUDY = ROOT / "examples" / "study"
RESULTS = [  # The pages of the study, in the order of its README.
    *("summary", "protocol", "comparison", "equal", "unseen", "transfer"),
    *("posttrain", "reinforce", "conditions"),
    *("ablations", "orders", "search", "cost", "speed", "tpu", "gpu", "memory"),
    *("bf16", "poet", "rotations", "finetuning", "paper_tables", "faults", "demo"),
]
RATES = "rates"  # A part of the guide to learning rates.
METHODS = {recipe.__name__ for group in om.recipes.METHODS.values() for recipe in group}
_CELL = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def setup(app: Any) -> dict[str, Any]:
    """Copies before Sphinx reads."""
    app.connect("builder-inited", write_pages, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Any) -> None:
    """Writes all copies."""
    del app
    for name in ("notebooks", "results"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    for group in GROUPS:
        (HERE / "notebooks" / group).mkdir(exist_ok=True)
    for path in NOTEBOOKS:
        _copy_notebook(path)
    (HERE / "notebooks" / "index.md").write_text(_index_of_notebooks())
    for name in (*RESULTS, RATES):
        text = (STUDY / "pages" / f"{name}.md").read_text()
        (HERE / "results" / f"{name}.md").write_text(relinked(text, STUDY / "pages"))
    for kind in ("png", "svg"):
        for picture in (STUDY / "results").glob(f"*.{kind}"):
            shutil.copy(picture, HERE / "results" / picture.name)
    (HERE / "results" / "index.md").write_text(_index_of_results())
    changes = (ROOT / "CHANGELOG.md").read_text()
    (HERE / "releases.md").write_text(
        relinked(changes.replace("# Changelog", "# Releases", 1), ROOT)
    )


def relinked(text: str, folder: Path) -> str:
    """A text of some folder whose links lead to pages of the documentation."""

    def new(match: re.Match[str]) -> str:
        bang, label, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        file = posixpath.normpath(str(folder / path))
        if bang:
            return f"![{label}]({Path(file).name})"
        page = _page_of(Path(file))
        if page is None:
            return label if label.startswith("`") else f"{label} (`{_named(file)}`)"
        return f"[{label}]({page}{'#' + anchor if anchor else ''})"

    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    return _CELL.sub(_linked_method, _LINK.sub(new, text))


def _linked_method(match: re.Match[str]) -> str:
    """The first cell of a row of a table, linked if it is a method."""
    name = match[1]
    return f"| [`{name}`](/gallery/{name}.rst) |" if name in METHODS else match[0]


def _page_of(file: Path) -> str | None:
    """The page of a file, from the root of the documentation."""
    if file.parent == STUDY / "pages" and file.stem in RESULTS:
        return f"/results/{file.name}"
    if file.parent == HERE / "guides":
        return f"/guides/{file.name}"
    if file in NOTEBOOKS:
        return f"{page_of_notebook(file)}.ipynb"
    if file == STUDY / "pages" / f"{RATES}.md":
        return "/guides/learning_rates.rst"
    if file == STUDY / "README.md":
        return "/results/index.md"
    return None


def _named(file: str) -> str:
    return str(Path(file).relative_to(ROOT))


# Notebooks.


def page_of_notebook(path: Path) -> str:
    """The page of a notebook, from the root of the documentation."""
    return f"/notebooks/{path.relative_to(BOOKS).with_suffix('')}"


def title_of(path: Path) -> str:
    """The title of a notebook."""
    first = _cells(path)[0]
    return "".join(first["source"]).split("\n")[0].removeprefix("# ")


def _cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def _copy_notebook(path: Path) -> None:
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = relinked("".join(cell["source"]), path.parent)
            cell["source"] = text.splitlines(keepends=True)
    notebook["cells"].insert(1, _where_to_run(path))
    for number, cell in enumerate(notebook["cells"]):
        cell.setdefault("id", f"cell-{number}")
    (HERE / path.relative_to(ROOT)).write_text(json.dumps(notebook))


def _where_to_run(path: Path) -> dict[str, Any]:
    text = f"*As it ran; the notebook itself is `{_named(str(path))}`.*"
    return {"cell_type": "markdown", "metadata": {}, "source": [text]}


def _figures(path: Path) -> list[bytes]:
    """The pictures of a notebook."""
    outputs = [out for cell in _cells(path) for out in cell.get("outputs", [])]
    shown = [out.get("data", {}) for out in outputs]
    return [base64.b64decode(x["image/png"]) for x in shown if "image/png" in x]


def _card(path: Path) -> str:
    """The title of a notebook, its first paragraph and one of its pictures."""
    first = "".join(_cells(path)[0]["source"]).split("\n\n")
    lead = " ".join(relinked(first[1], path.parent).split()) if first[1:] else ""
    whole = re.match(r".*(?<!Eq)\.(?=\s|$)", lead)  # Some end in a formula.
    image, page = "", page_of_notebook(path)
    if pictures := _figures(path)[:2]:  # The second one says more.
        picture = HERE / path.relative_to(ROOT).with_suffix(".png")
        picture.write_bytes(pictures[-1])
        image = f"![A figure of this notebook]({page}.png)\n\n"
    lead = whole[0] if whole else ""
    return f"### [{title_of(path)}]({page}.ipynb)\n\n{image}{lead}\n"


def _index_of_notebooks() -> str:
    listed, trees = [], []
    for folder, (group, who) in GROUPS.items():
        paths = [path for path in NOTEBOOKS if path.parent == BOOKS / folder]
        listed += [f"## {group}\n\n{who}\n", *map(_card, paths)]
        names = "\n".join(map(page_of_notebook, paths))
        trees += [f"```{{toctree}}\n:hidden:\n:caption: {group}\n\n{names}\n```\n"]
    body = "\n".join(listed + trees)
    return f"""# Notebooks

Each runs from top to bottom on two CPU cores, in Colab too, and is shown as it ran. The
first cell installs what the notebook needs.

{body}"""


def _index_of_results() -> str:
    """The README of the study with its table of pages, and the toctree."""
    text = (STUDY / "README.md").read_text()
    names = "\n".join(f"{name}.md" for name in RESULTS)
    toctree = f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    return relinked(text, STUDY).replace("# The study", "# Results", 1) + toctree
