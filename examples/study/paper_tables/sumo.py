"""SUMO: Tables 1 to 3."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

import optax_matrix as om
from examples.study.memory_table import METHODS, SIZES, count, gib
from examples.study.paper_tables.rows import (
    LLAMA,
    Row,
    formula,
    growth,
    matrix,
    number,
    size_of,
    state,
)
from optax_matrix.diagnostics import state_bytes

PAPER = "SUMO"
STATE = {  # Table 1, m >= n.
    "sumo": "n*r + m*r",
    "adamw": "2*m*n",
    "shampoo": "m**2 + n**2",
    "soap": "2*m*n + 2*m**2 + 2*n**2",
    "galore": "2*n*r + m*r",
}
COST = {  # Table 1 with K = 1.
    "sumo": "m*n*r + m*n**2",
    "adamw": "m*n",
    "shampoo": "m**3 + n**3",
    "soap": "m**3 + n**3",
    "galore": "m*n*r + m*n**2",
}
TABLE_3 = {
    "adamw": "0.36 0.76 2.06 7.80",
    "galore": "0.24 0.52 1.22 4.38",
    "sumo": "0.23 0.51 1.16 1.16",
}
TABLE_2 = {("galore", 4): "253", ("galore", 8): "257", ("sumo", 4): "197"}
TABLE_2 |= {("sumo", 8): "198"}

row = partial(number, PAPER)


def sumo() -> Iterator[Row]:
    """All rows of this paper."""
    for method, printed in STATE.items():
        cell = f"Table 1, state, {method}"
        why = "the shorter side's basis and moments hold 2mr + nr; see the next row"
        yield formula(PAPER, cell, printed, partial(state, method), why, tall=True)
    cell = "Table 1, state, galore(side='long')"
    yield formula(PAPER, cell, STATE["galore"], galore_of_longer_side, tall=True)
    for method, printed in COST.items():
        yield growth(PAPER, f"Table 1, cost, {method}", printed, method, tall=True)
    for method, cells in TABLE_3.items():
        for size, printed in zip(LLAMA, cells.split(), strict=True):
            why = "no convention is given; ours is Structured Fisher's, head by Adam"
            if (method, size) == ("sumo", "1.3B"):
                why = "the cell repeats the one of 350M"
            ours = gib(count(method, SIZES[size]))
            yield row(f"Table 3, GiB, {method} {size}", printed, ours, why)
    yield from table_2()


def galore_of_longer_side(m: int, n: int, rank: int) -> int:
    tx = om.galore(1.0, rank=rank, side="long")
    return state_bytes(tx, matrix(m, n)).elements


def table_2() -> Iterator[Row]:
    """RoBERTa-base with a classifier of two labels, two bytes a number."""
    stack = lambda *sides: {"kernel": jax.ShapeDtypeStruct((12, *sides), jnp.bfloat16)}
    tree = {name: stack(768, 768) for name in ("q", "k", "v", "o")}
    tree |= {"up": stack(768, 3072), "down": stack(3072, 768)}
    embeddings = (50265 + 514 + 1 + 2) * 768
    vectors = 12 * (9 * 768 + 3072)
    classifier = 768 * 768 + 768 + 2 * 768 + 2
    weights = size_of(tree) + embeddings + vectors + classifier
    yield row("Table 2, 10^6 bytes, full", "747", 3 * 2 * weights / 1e6)
    for (method, rank), printed in TABLE_2.items():
        why = "weights, and state of the linear layers; the paper says no convention"
        if method == "sumo":
            why = f"the weights alone take {2 * weights / 1e6:.0f}"
        held = state_bytes(METHODS[method](rank), tree).elements
        cell = f"Table 2, 10^6 bytes, {method} r = {rank}"
        yield row(cell, printed, 2 * (weights + held) / 1e6, why)
