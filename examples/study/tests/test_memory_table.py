"""Memory of the real recipes by formulas; the papers' cells are in paper_tables."""

import functools
import math

import jax
import pytest

from examples.study.memory_table import METHODS, SIZES, VOCABULARY, count, shapes, table
from optax_matrix.tree import _wrapper


@pytest.fixture(autouse=True)
def _no_trial(monkeypatch):
    """Whether matrices are coupled is tried elsewhere; here it would take minutes."""
    monkeypatch.setattr(_wrapper, "refuse_coupling", lambda *_: None)


counted = functools.cache(lambda *args: count(*args))

# State of an m x n matrix, m <= n, at rank r: Tables 1 of Structured Fisher and SUMO,
# less the weights. O(1) scalars are left out: RACS has one, APOLLO-mini two.
STATE = {
    "adamw": lambda m, n, _: 2 * m * n,
    "shampoo": lambda m, n, _: m**2 + n**2,
    "soap": lambda m, n, _: 2 * m * n + 2 * m**2 + 2 * n**2,
    "eigen_adam": lambda m, n, _: 2 * m * n + 2 * m**2,
    "racs": lambda m, n, _: m + n,
    "galore": lambda m, n, r: 2 * n * r + m * r,
    "fira": lambda m, n, r: 2 * n * r + m * r,
    "apollo": lambda _, n, r: 2 * n * r,
    "apollo_mini": lambda _, n, __: 2 * n,
    "apollo_svd": lambda m, n, r: 2 * n * r + m * r,
    "alice": lambda m, n, r: 2 * n * r + m * r + n + r**2,
    "alice_0": lambda m, n, r: 2 * n * r + m * r + n,
    # Projected from the long side: the basis is n x r, the moment m x r.
    "sumo": lambda m, n, r: n * r + m * r,
}


def matrices(size, with_head):
    """Sides of all matrices, and the elements of the other parameters."""
    d, f = size.width, size.hidden
    sides = size.layers * [(d, d)] * 4 + size.layers * [(d, f)] * 3
    others = VOCABULARY * d + (2 * size.layers + 1) * d
    if with_head:
        return [*sides, (d, VOCABULARY)], others
    return sides, others + VOCABULARY * d


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name):
    want = {"60M": 58.07, "130M": 134.1, "350M": 367.97, "1.3B": 1339.08, "7B": 6738.42}
    total = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes(SIZES[name])))
    assert total / 1e6 == pytest.approx(want[name], rel=1e-4)


@pytest.mark.daily("60M", "7B-method")
@pytest.mark.broad
@pytest.mark.parametrize("with_head", [False, True], ids=["adam", "method"])
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(n, marks=pytest.mark.slow if n in ("130M", "350M") else [])
        for n in SIZES
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_formulas(method, size, with_head):
    found = counted(method, SIZES[size], with_head)
    sides, others = matrices(SIZES[size], with_head)
    rank = SIZES[size].rank
    assert found.parameters == sum(m * n for m, n in sides) + others
    # With the head among them, every m is the width, which is the shorter side.
    assert found.elements == sum(STATE[method](*x, rank) for x in sides) + 2 * others
    # Four numbers that say which matrix, norms, scales, weights, counts of renewals and
    # of zero gradients; name, counters.
    few = 10 * len(sides) + 5 + 6
    assert found.scalars <= few


@pytest.mark.broad
def test_table_is_printed():
    lines = table(["60M"]).splitlines()
    assert len(lines) == 2 + len(METHODS)
    assert lines[2].split() == ["adamw", "0.32", "/", "0.32"]
