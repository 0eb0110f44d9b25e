"""Rows of the tables: numbers, formulas of the sides, and growth with the sides.

A formula is Python text in m and n, the sides of a matrix, and r or b, its rank or the
size of its blocks.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from examples.study.memory_table import METHODS
from optax_matrix.diagnostics import state_bytes

LLAMA = ("60M", "130M", "350M", "1.3B")
SIDES = ((64, 96, 8), (48, 48, 4), (32, 200, 4))
START = (64, 256, 8)
GROWN = {"n x 16": (64, 4096, 8), "m, n x 4": (256, 1024, 8)}


class Row(NamedTuple):
    """A cell of a paper, the paper's number, ours, and how they compare."""

    paper: str
    cell: str
    printed: str
    ours: str
    verdict: str


def number(paper: str, cell: str, printed: str, value: float, why: str = "") -> Row:
    """A number; ``why`` is needed where the two differ."""
    digits = len(printed.partition(".")[2])
    cut = math.floor(value * 10**digits) / 10**digits
    if value == float(printed):
        verdict = "exact"
    elif float(printed) in (round(value, digits), cut):
        verdict = "within rounding"
    else:
        verdict = f"differs: {why}"
    return Row(paper, cell, printed, f"{value:.{digits + 2}f}", verdict)


def formula(
    paper: str,
    cell: str,
    printed: str,
    counted: Callable[..., int],
    why: str = "",
    tall: bool = False,
) -> Row:
    """A formula of the sides against what is counted of three matrices.

    Constants are left out, as counters are: RACS's + 1 is the norm of its limiter.
    ``tall`` is for formulas with m >= n; the others have m <= n.
    """
    sides = [(n, m, k) if tall else (m, n, k) for m, n, k in SIDES]
    found = [counted(*s) for s in sides]
    wanted = [value_of(printed, *s) - value_of(printed, 0, 0, 0) for s in sides]
    (m, n, k), *_ = sides
    ours = f"{found[0]:,} of {m} x {n}, {'b' if 'b' in printed else 'r'} = {k}"
    verdict = "exact" if found == wanted else f"differs: {why}"
    return Row(paper, cell, pretty(printed), ours, verdict)


def growth(
    paper: str, cell: str, printed: str, method: str, why: str = "", tall: bool = False
) -> Row:
    """Whether the operations of an update grow as O(formula) with the sides.

    A factor of two is let pass, for terms of lower order beside growth by 4 to 4096.
    """
    bound = lambda m, n, k: value_of(printed, *((n, m, k) if tall else (m, n, k)))
    ours, limits = {}, {}
    for name, sides in GROWN.items():
        ours[name] = flops(method, *sides) / flops(method, *START)
        limits[name] = bound(*sides) / bound(*START)
    holds = all(ours[name] <= 2 * limits[name] for name in GROWN)
    text = ", ".join(f"{ratio:.0f} ({name})" for name, ratio in ours.items())
    verdict = "holds" if holds else f"differs: {why}"
    return Row(paper, cell, f"O({pretty(printed)})", f"times {text}", verdict)


def value_of(expression: str, m: int, n: int, k: int) -> float:
    return eval(expression, {}, {"m": m, "n": n, "r": k, "b": k})


def pretty(expression: str) -> str:
    return expression.replace("**2", "²").replace("**3", "³").replace("*", "")


def matrix(m: int, n: int) -> dict:
    """One matrix of two bytes a number, as a tree of shapes."""
    return {"kernel": jax.ShapeDtypeStruct((n, m), jnp.bfloat16)}


def size_of(tree) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


def state(method: str, m: int, n: int, rank: int) -> int:
    """Numbers in the state of one matrix."""
    return state_bytes(METHODS[method](rank), matrix(m, n)).elements


def memory(method: str, m: int, n: int, rank: int) -> int:
    """Numbers in one matrix and its state."""
    return m * n + state(method, m, n, rank)


@functools.cache
def flops(method: str, m: int, n: int, rank: int) -> float:
    """Operations of an update that renews its bases, as XLA counts the program."""
    tx, params = METHODS[method](rank), matrix(m, n)
    held = jax.eval_shape(tx.init, params)
    return jax.jit(tx.update).lower(params, held, params).cost_analysis()["flops"]


def table(rows: Iterable[Row]) -> str:
    """Columns of the rows."""
    lines = [Row(*Row._fields), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in lines)
