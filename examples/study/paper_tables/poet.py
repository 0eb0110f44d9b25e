"""POET: Tables 1, 2, 7 and 10."""

from collections.abc import Iterator
from functools import partial

import jax
import optax

import optax_matrix as om
from examples.study.memory_table import SIZES, Size, shapes
from examples.study.paper_tables.rows import (
    LLAMA,
    Row,
    formula,
    matrix,
    memory,
    number,
    size_of,
)
from optax_matrix.diagnostics import state_bytes

PAPER = "POET"
# Widths of the MLP; the rows AdamW and FS of Table 2 have GaLore's, those of BS and
# LoRA have Table 7's.
GALORE = dict(zip(LLAMA, (1376, 2048, 2736, 5464), strict=True))
TABLE_7 = dict(zip(LLAMA, (1280, 2048, 2816, 5376), strict=True))
VARIANTS = {"FS": "full", "BS": "block"}
TABLE_1 = {"FS": "b*(b - 1)", "BS": "(m + n)*(b - 1)/2"}
TABLE_2 = {
    ("BS", 64): "2.39 5.52 14.90 29.22",
    ("BS", 128): "4.81 11.12 30.04 58.91",
    ("BS", 256): "9.66 22.33 60.32 118.26",
    ("FS", 1 / 8): "0.53 1.78 6.34 25.39",
    ("FS", 1 / 4): "2.13 7.13 25.44 101.66",
    ("FS", 1 / 2): "8.54 28.56 101.86 406.88",
}
ADAMW = "25.30 84.93 302.38 1210"
LORA = "4.85 11.21 30.28 59.38"

row = partial(number, PAPER)


def poet() -> Iterator[Row]:
    """All rows of this paper."""
    for method, printed in (("adamw", "3*m*n"), ("galore", "m*n + m*r + 2*n*r")):
        cell = f"Table 1, memory, {method}"
        yield formula(PAPER, cell, printed, partial(memory, method))
    for kind, printed in TABLE_1.items():
        cell = f"Table 1, {{}}, {kind}"
        yield formula(
            PAPER, cell.format("trainable"), printed, partial(trainable, kind)
        )
        more = f"m*n + 3*{printed}"
        yield formula(PAPER, cell.format("memory"), more, partial(stored, kind))
    yield from table_2()
    for size, printed in zip(LLAMA, ADAMW.split(), strict=True):
        why = f"Table 2 has an MLP of {GALORE[size]}, Table 7 of {TABLE_7[size]}"
        yield adamw(f"Table 7, M, AdamW {size}", printed, with_mlp(size, TABLE_7), why)
    why = "the two speed-ups above the total multiply to 1.95"
    yield row("Table 10, total of 1.5 x 1.3", "3.8", 1.5 * 1.3, why)


def split(kind: str, block: float, params) -> tuple:
    """Shapes of the fixed and the trainable parts."""
    parts = om.reparameterize(variant=VARIANTS[kind], block=block)
    return jax.eval_shape(parts.split, params)


def trainable(kind: str, m: int, n: int, block: int) -> int:
    """Trainable numbers of one matrix."""
    return size_of(split(kind, block, matrix(m, n))[1].rotations)


def stored(kind: str, m: int, n: int, block: int) -> int:
    """Weights and trainable numbers of one matrix, and two moments of the latter."""
    frozen, trained = split(kind, block, matrix(m, n))
    found = state_bytes(optax.adamw(1e-3), trained.rotations)
    return size_of(frozen.weights) + found.parameters + found.elements


def with_mlp(size: str, hidden: dict[str, int]) -> Size:
    return SIZES[size]._replace(hidden=hidden[size])


def table_2() -> Iterator[Row]:
    """Trainable numbers in the matrices of the layers."""
    for size, printed in zip(LLAMA, ADAMW.split(), strict=True):
        yield adamw(f"Table 2, M, AdamW {size}", printed, with_mlp(size, GALORE))
    for size, printed in zip(LLAMA, LORA.split(), strict=True):
        width, layers = SIZES[size].width, SIZES[size].layers
        ours = 64 * layers * (4 * 2 * width + 3 * (width + TABLE_7[size])) / 1e6
        yield row(f"Table 2, M, LoRA r = 64 {size}", printed, ours)
    for (kind, block), cells in TABLE_2.items():
        for size, printed in zip(LLAMA, cells.split(), strict=True):
            model = with_mlp(size, TABLE_7 if kind == "BS" else GALORE)
            ours = size_of(split(kind, block, shapes(model))[1].rotations) / 1e6
            why = "Table 1's formula gives 118.287"
            yield row(f"Table 2, M, {kind} b = {block:g} {size}", printed, ours, why)


def adamw(cell: str, printed: str, model: Size, why: str = "") -> Row:
    """The matrices of the layers; 1.3B is printed as 1.21B."""
    layers = shapes(model)["layers"]
    ours = size_of((layers["attn"], layers["mlp"])) / 1e6
    if printed == "1210":
        return row(cell.replace("M,", "B,"), "1.21", ours / 1e3, why)
    return row(cell, printed, ours, why)
