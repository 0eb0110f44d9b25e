"""What the papers print against what is counted: the verdict of every row."""

import collections
import math
import subprocess
import sys

import pytest

from examples.study.memory_table import SIZES, count, gib
from examples.study.paper_tables import structured_fisher
from examples.study.paper_tables.papers import PAPERS
from examples.study.paper_tables.rows import formula, growth, memory, number, table

# Cells that differ, by paper; all others agree, so often exactly and so often rounded.
DIFFER = {
    "muoneq": (set(), {"exact": 3}),
    "poet": (
        {
            "Table 2, M, BS b = 256 1.3B",
            "Table 7, M, AdamW 60M",
            "Table 7, M, AdamW 350M",
            "Table 7, B, AdamW 1.3B",
            "Table 10, total of 1.5 x 1.3",
        },
        {"exact": 6, "within rounding": 32},
    ),
    "aro": ({"Section 5.5, M active parameters"}, {"within rounding": 5}),
    "sumo": (
        {
            "Table 1, state, galore",
            *(f"Table 3, GiB, adamw {size}" for size in ("60M", "130M", "1.3B")),
            *(f"Table 3, GiB, galore {n}" for n in ("60M", "130M", "350M", "1.3B")),
            *(f"Table 3, GiB, sumo {size}" for size in ("60M", "350M", "1.3B")),
            *(
                f"Table 2, 10^6 bytes, {method} r = {r}"
                for method in ("galore", "sumo")
                for r in (4, 8)
            ),
        },
        {"exact": 5, "holds": 5, "within rounding": 3},
    ),
    "structured_fisher": (
        {
            "Table 1, cost, eigen_adam",
            *(
                f"Table 2, effective tokens/s, Alice {n}"
                for n in ("60M", "130M", "350M", "1.3B")
            ),
            *(
                f"Table 3, GiB, alice {size}{head}"
                for size in ("130M", "350M", "1.3B")
                for head in ("", "*")
            ),
            "Table 10, B parameters of 1.3B, width 4096, 32 layers",
            "Section F.2, B tokens, 60M",
            "Section F.4, GiB by Alice",
            "Section F.4, 3.86 + 0.37",
        },
        {"exact": 10, "holds": 6, "within rounding": 56},
    ),
}


def test_every_paper_is_held():
    assert DIFFER.keys() == PAPERS.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("muoneq", marks=pytest.mark.broad),
        pytest.param("poet", marks=pytest.mark.slow),
        "aro",
        pytest.param("sumo", marks=pytest.mark.slow),
        pytest.param("structured_fisher", marks=pytest.mark.slow),
    ],
)
def test_verdicts(name):
    differing, agreeing = DIFFER[name]
    rows = list(PAPERS[name]())
    assert len({row.cell for row in rows}) == len(rows)
    assert {r.cell for r in rows if r.verdict.startswith("differs")} == differing
    others = [row.verdict for row in rows if row.cell not in differing]
    assert collections.Counter(others) == agreeing
    assert "differs: " not in {row.verdict for row in rows}  # Each with its reason.


@pytest.mark.slow
def test_structured_fishers_memory_is_ours():
    """Table 3 every day: all but Alice's cells, and those with r² counted twice."""
    for row in structured_fisher.table_3():
        if row.verdict != "within rounding":
            *_, method, size = row.cell.split()
            assert method == "alice"
            model, with_head = SIZES[size.rstrip("*")], not size.endswith("*")
            matrices = 7 * model.layers + with_head
            ours = gib(count("alice", model, with_head))
            twice = ours + 2 * model.rank**2 * matrices / 2**30
            assert number("", "", row.printed, twice).verdict == "within rounding"


@pytest.mark.parametrize(
    ("printed", "value", "verdict"),
    [
        ("12", 12, "exact"),
        ("0.75", 0.7494, "within rounding"),
        ("2.05", 2.0562, "within rounding"),  # Cut.
        ("2.05", 2.0601, "differs: so"),
        ("2.05", 2.0449, "differs: so"),
        ("118.26", 118.287, "differs: so"),
    ],
)
def test_a_number_agrees_to_its_printed_digits(printed, value, verdict):
    assert number("", "", printed, value, "so").verdict == verdict


def test_a_formula_agrees_for_all_sides_but_for_constants():
    area = lambda m, n, k: m * n + k * n
    assert formula("", "", "m*n + n*r + 1", area).verdict == "exact"
    assert formula("", "", "m*n + m*r", area, "so").verdict == "differs: so"
    assert formula("", "", "m*n + m*r", area, tall=True).verdict.startswith("differs")
    assert formula("", "", "n*(b + m)", area, tall=True).verdict == "exact"


@pytest.mark.broad
def test_a_bound_that_does_not_hold_is_found():
    assert growth("", "", "m*n", "racs").verdict == "holds"
    assert growth("", "", "m + n", "racs", "so").verdict == "differs: so"
    assert growth("", "", "m**3", "adamw", "so").verdict == "differs: so"
    assert growth("", "", "m**3", "adamw", tall=True).verdict == "holds"


@pytest.mark.broad
def test_memory_by_hand():
    assert memory("racs", 64, 96, 1) == 64 * 96 + 64 + 96
    assert memory("alice", 64, 96, 8) == 64 * 96 + 2 * 96 * 8 + 64 * 8 + 96 + 64
    assert math.isclose(gib(count("adamw", SIZES["60M"])), 0.3245, abs_tol=5e-5)


def test_the_table_has_a_line_for_each_row():
    rows = list(PAPERS["aro"]())
    header, *lines = table(rows).splitlines()
    assert header.split() == ["paper", "cell", "printed", "ours", "verdict"]
    assert len(lines) == len(rows) == 6
    assert lines[3].startswith("ARO    Table 5, B parameters")
    assert lines[3].endswith("within rounding")


@pytest.mark.slow
def test_command_line():
    command = [sys.executable, "-m", "examples.study", "paper-tables", "aro"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == table(PAPERS["aro"]())
