"""The pages of the documentation that are made from code and runs are complete.

`make docs` builds them; here their parts are looked at without Sphinx.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _walks import walk

import optax_matrix as om

ROOT = Path(__file__).parents[1]
DOCS = ROOT / ".docs"
PAGES = [*DOCS.glob("*.rst"), *DOCS.glob("guides/*.rst")]
PAGES = [page for page in PAGES if page.name != "catalogue.rst"]  # Made by a build.
RECIPES = [recipe.__name__ for group in om.recipes.METHODS.values() for recipe in group]


@pytest.fixture(autouse=True, scope="module")
def docs():
    """The modules of the documentation can be imported."""
    sys.path.insert(0, str(DOCS))
    yield
    sys.path.remove(str(DOCS))


def test_the_catalogue_has_formula_source_and_code_of_each_method():
    import chains

    from examples.catalogue import METHODS

    text = chains.page()
    entries = re.split(r"\n~+\n", text)[1:]
    assert len(entries) == len(METHODS)
    for (name, method), entry in zip(METHODS.items(), entries, strict=True):
        assert re.search(rf"def {name}\(", entry), name
        assert method.restated, name
        for part in (".. math::", "Source", "https://", "Left\\s+out:|left\\s+out:"):
            assert re.search(part, entry), (name, part)
        assert 'r"""' not in entry, name


def test_every_method_has_a_page_with_paper_chain_state_and_advice():
    import facts

    table = facts.methods()
    assert list(table) == RECIPES
    assert set(facts.WHEN) == set(RECIPES)
    for name in RECIPES:
        assert all(table[name]), name
        assert "https://" in table[name].source, name
        assert set(facts.WHEN[name]) == {"use", "avoid"}
        assert all(text.endswith(".") for text in facts.WHEN[name].values()), name
    assert {name for methods in facts.FIVE.values() for name in methods} <= set(RECIPES)


def test_advice_has_no_measured_numbers():
    import facts

    texts = [text for one in facts.WHEN.values() for text in one.values()]
    assert not [text for text in texts if re.search(r"\d\.\d|\d%|\dx\b", text)]


@pytest.mark.broad
def test_tables_are_full():
    import runs

    for name, make in runs.TABLES.items():
        table = make()
        assert table.rows, name
        widths = {len(row) for row in table.rows}
        assert widths == {len(table.headings)}, name
    linked = lambda table: re.findall(r"</gallery/(\w+)>", table.rst())
    assert linked(runs.costs()) == RECIPES
    assert len(linked(runs.equal_budgets())) == 11


@pytest.mark.broad
def test_charts_of_equal_budgets_end_at_the_losses_of_the_runs():
    import charts
    import runs

    drawn, rows = charts.against_tuned("muoneq"), runs.equal_rows("muoneq")
    assert drawn.count("<figure") == len(rows) == 3
    for ours, adamw in rows.values():
        assert f"muoneq {ours.losses.mean():.3f}" in drawn
        assert f"adamw, tuned {adamw.losses.mean():.3f}" in drawn
    assert charts.against_tuned("kron") == ""


@pytest.mark.broad
def test_charts_have_the_colors_of_the_methods():
    import charts

    for name in ("muoneq", "soap"):
        color = om.diagnostics.method_style(name)["color"]
        for drawn in (charts.against_tuned(name), charts.curves(name)):
            assert f"--method: {color}" in drawn
            assert {*re.findall(r"--method: (#\w+)", drawn)} == {color}


@pytest.mark.broad
def test_equal_budgets_come_first():
    """On pages of methods, in the guide that chooses, and on their own page."""
    import measured
    import runs

    parts = "measured.losses(name)", 'title("Arguments"', "measured.first_study(name)"
    page = (DOCS / "gallery.py").read_text()  # It needs Sphinx.
    assert [*parts] == sorted(parts, key=page.index)
    assert "Against a tuned AdamW" in "".join(measured.losses("muoneq"))
    assert "not tuned as well" in "".join(measured.losses("kron"))
    assert "Appendix: the first study" in "".join(measured.first_study("kron"))
    guide = (DOCS / "guides" / "choose.rst").read_text()
    assert guide.index("table-of:: equal-budgets") < guide.index("table-of:: costs")
    assert guide.index("Appendix: the first study") < guide.index("table-of:: costs")
    page = (ROOT / "examples/study/pages/equal.md").read_text()
    assert page.index("![") < page.index("equal_summary") < page.index("## How it")
    of_home = (DOCS / "index.rst").read_text()
    assert "table-of:: costs" not in of_home
    assert len(runs.of_equal_budgets("muoneq").rows) == 7


def test_texts_of_runs_are_those_of_the_readme():
    import runs

    from examples.study.equal import front

    readme = (ROOT / "README.md").read_text()
    for name, make in (("caption", front.caption), ("expect", front.expect)):
        assert make(front.read()) in readme, "study bench table --write"
        assert f".. text-of:: front-{name}" in (DOCS / "index.rst").read_text()
        assert runs.TEXTS[f"front-{name}"]().count("``") == 2
    assert front.is_current(front.read()), "study bench table --write"


@pytest.mark.broad
def test_curves_end_at_the_losses_of_the_runs():
    import charts
    import runs

    drawn = charts.curves("muoneq")
    found = runs.of_method("muoneq")
    assert drawn.count("<figure") == len(found) == 3
    for row in found.values():
        assert f"muoneq ends at {row.curve[-1]:.3f}" in drawn
        assert f"muoneq {row.loss:.3f}" in drawn


@pytest.mark.broad
def test_rates_of_a_page_are_the_best_of_the_trials():
    import runs

    row = runs.of_method("muoneq", "matched")["books"]
    assert row.rate == min(row.trials, key=row.trials.get)
    cells = next(cells for cells in runs.of_study("muoneq").rows if cells[0] == "books")
    assert cells[2] == f"{row.rate:.2g}"
    assert cells[3] == f"{row.rate / runs.adamw('books').rate:.3g}"


def test_pages_show_what_was_run_and_say_what_was_not():
    """A method without runs has a page, too: no test waits for them."""
    import measured
    import runs

    for name in RECIPES:
        for has, part in (
            (name in runs.spectra(), measured.spectrum(name)),
            (bool(runs.of_study(name).rows), measured.first_study(name)),
        ):
            text = "\n".join(part)
            assert ("<figure" in text, "Not run yet: ``python" in text) == (
                has,
                not has,
            )
    for part in (measured.first_study("no_such"), measured.spectrum("no_such")):
        assert "Not run yet: ``python -m examples.study bench " in "\n".join(part)


def test_spectra_end_at_the_values_of_the_runs():
    import charts
    import runs

    for name in {*RECIPES} & {*runs.spectra()}:
        ours, drawn = runs.spectra()[name].spectra, charts.spectra(name)
        assert drawn.count("<figure") == drawn.count("aria-label=") == 3
        assert f", {name} {ours.update[47]:.2g}" in drawn
        assert f", {name} {ours.change[47]:.2g}" in drawn
        assert f"after training {ours.last[47]:.2g}" in drawn


def test_links_of_copied_pages_lead_to_pages():
    import copies

    text = "[a](comparison.md), [b](../results/bench.jsonl), ![c](../results/books.png)"
    assert copies.relinked(text, copies.STUDY / "pages") == (
        "[a](/results/comparison.md), b (`examples/study/results/bench.jsonl`), "
        "![c](books.png)"
    )
    pages = {path.stem for path in (copies.STUDY / "pages").glob("*.md")}
    assert pages == {*copies.RESULTS, copies.RATES}


@walk("page", PAGES)
def test_links_between_pages_and_tables_exist(page):
    import copies
    import runs

    text = page.read_text()
    made = {f"/gallery/{name}" for name in (*RECIPES, "index")}
    made |= {f"/results/{name}" for name in (*copies.RESULTS, "index")}
    made |= {*map(copies.page_of_notebook, copies.NOTEBOOKS)}
    made |= {"/notebooks/index", "/api/index", "/catalogue", "/releases"}
    for target in re.findall(r":doc:`(?:[^`<]*<)?([^`<>]+)>?`", text):
        below = DOCS if target.startswith("/") else page.parent
        path = (below / target.strip("/")).resolve()
        name = f"/{path.relative_to(DOCS)}"
        assert name in made or path.with_suffix(".rst").exists(), target
    assert set(re.findall(r"\.\. table-of:: (\S+)", text)) <= set(runs.TABLES)
    assert set(re.findall(r"\.\. text-of:: (\S+)", text)) <= set(runs.TEXTS)


SCORES = """
const window = {location: {search: "?q=" + encodeURIComponent(process.argv[1])}};
const pages = ["Migrate", "Learning rates", "Mixtures of experts (MoE)", "Sharding"];
const scored = pages.map((title) => [
  Scorer.score(["guides/" + title, title, "", null, 15, "x.rst"]), title]);
console.log(scored.sort((a, b) => b[0] - a[0])[0][1]);
console.log(Scorer.score(["releases", "Learning rate", "", null, 15, "x.rst"]) < 35);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("learning rate", "Learning rates"),
        ("rate", "Learning rates"),  # And not "Migrate".
        ("expert", "Mixtures of experts (MoE)"),
        ("Experts", "Mixtures of experts (MoE)"),
        ("moe", "Mixtures of experts (MoE)"),
        ("sharding", "Sharding"),
    ],
)
def test_a_search_finds_the_guide_of_that_title_first(query, first):
    program = (DOCS / "static" / "scorer.js").read_text() + SCORES
    command = ["node", "-e", program, query]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [first, "true"]


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## (\d\S*), (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)
    version, date = released[0]
    assert version == project["version"] == om.__version__
    assert [date for _, date in released] == sorted(
        (date for _, date in released), reverse=True
    )
    citation = (ROOT / ".github" / "CITATION.cff").read_text()
    assert f"version: {version}\n" in citation
    assert f'date-released: "{date}"\n' in citation


LOGGED = {"update_rms/up/bias", "update_rms/up/kernel"}


def _block(name, guide="look_inside"):
    """The Python block of this name in a guide."""
    text = (DOCS / "guides" / f"{guide}.rst").read_text()
    found = re.search(rf"   :name: {name}\n\n((?:   .*\n|\n)+)", text)
    return "\n".join(line[3:] for line in found[1].split("\n"))


@pytest.fixture
def measured():
    params = {"up": {"kernel": jnp.eye(4, 8), "bias": jnp.ones(8)}}
    tx = om.diagnostics.monitor(om.muon(1e-3), ("update_rms",))
    return jax.jit(tx.update)(params, tx.init(params), params)[1]


@pytest.mark.broad
def test_tensorboard_lines_run(measured, monkeypatch):
    written = []

    class SummaryWriter:  # As in tensorboardX and torch.utils.tensorboard.
        def __init__(self, logdir=None):
            assert logdir == "logs"

        def add_scalar(self, tag, scalar_value, global_step=None):
            written.append((tag, float(scalar_value), global_step))

    stand_in = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "tensorboardX", stand_in)
    exec(
        _block("tensorboard"),
        {"om": om, "state": measured, "step": 7, "logdir": "logs"},
    )
    assert {tag for tag, _, _ in written} == {
        "update_rms/up/bias",
        "update_rms/up/kernel",
    }
    assert all(value > 0 and step == 7 for _, value, step in written)


@pytest.mark.broad
def test_wandb_lines_run(measured, monkeypatch):
    logged = {}

    class Run:
        def log(self, data, step=None):
            logged[step] = json.loads(json.dumps(data))

    def init(project=None, mode=None):
        assert (project, mode) == ("my-project", "offline")
        return Run()

    stand_in = types.SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    exec(_block("wandb"), {"om": om, "state": measured, "step": 7})
    assert set(logged[7]) == LOGGED


@pytest.mark.broad
def test_orbax_lines_run(tmp_path):
    params = {"up": {"kernel": jnp.eye(4, 8), "bias": jnp.ones(8)}}
    tx = om.muon(1e-3)
    state = tx.update(params, tx.init(params), params)[1]
    path = tmp_path / "checkpoint"
    scope = {"om": om, "tx": tx, "params": params, "state": state, "path": path}
    exec(_block("orbax", "checkpoints"), scope)
    jax.tree.map(np.testing.assert_array_equal, scope["restored"]["opt_state"], state)


def test_no_python_block_of_a_guide_is_left_out():
    every = [name for page in PAGES for name in _named_blocks(page.read_text())]
    assert sorted(every) == ["orbax", "tensorboard", "wandb"]


def _named_blocks(text):
    return re.findall(r"code-block:: python\n(?:   :name: (\w+)\n)?", text)


def _words():
    """Rows of the tables of words of other programs: recipe, keyword, text."""
    text = (DOCS / "guides" / "migrate.rst").read_text()
    sections = re.split(r"\n(?=From )", text)
    for title, recipe in (("optax.contrib", om.muon), ("SOAP", om.soap)):
        (section,) = (s for s in sections if s.startswith(f"From {title}"))
        for left, right in re.findall(r"   \* - (.*)\n     - (.*)", section):
            for keyword in re.findall(r"``(\w+)=", left):
                yield pytest.param(recipe, keyword, right, id=keyword)


@walk(("recipe", "keyword", "right"), _words())
def test_words_of_other_programs_get_the_hint_of_the_table(recipe, keyword, right):
    with pytest.raises(TypeError) as error:
        recipe(0.1, **{keyword: object()})
    meant = re.match(r"``(\w+)=", right)
    assert (meant[1] if meant else "leave it out") in str(error.value)
