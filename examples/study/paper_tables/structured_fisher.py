"""Structured Fisher (RACS and Alice): Tables 1 to 4, 6 and 10, and Appendix F."""

from collections.abc import Iterator
from functools import partial

from examples.study.memory_table import SIZES, count, gib, shapes
from examples.study.paper_tables.rows import (
    LLAMA,
    Row,
    formula,
    growth,
    memory,
    number,
    size_of,
)

PAPER = "Structured Fisher"
MEMORY = {
    "Table 1": {
        "adamw": "3*m*n",
        "shampoo": "m*n + m**2 + n**2",
        "eigen_adam": "3*m*n + 2*m**2",
        "soap": "3*m*n + 2*m**2 + 2*n**2",
        "galore": "m*n + 2*n*r + m*r",
        "racs": "m*n + m + n + 1",
        "alice": "m*n + 2*n*r + m*r + n + r**2",
    },
    "Table 6": {
        "fira": "m*n + 2*n*r + m*r",
        "alice_0": "m*n + 2*n*r + m*r + n",
    },
    "Section E.5": {"apollo_mini": "m*n + 2*n + 2"},
}
COST = {  # Table 1 with K = 1.
    "adamw": "m*n",
    "shampoo": "m**3 + n**3",
    "eigen_adam": "m**3",
    "soap": "m**3 + n**3",
    "galore": "m*n*r + m**2*n",
    "racs": "m*n",
    "alice": "m*n*r + m**2*r",
}
TABLE_3 = {  # With the head by the method, and by Adam (*).
    "adamw": ("", "0.32 0.75 2.05 7.48"),
    "galore": ("0.21 0.51 1.20 4.25", "0.26 0.57 1.29 4.43"),
    "fira": ("0.21 0.51 1.20 4.25", "0.26 0.57 1.29 4.43"),
    "apollo_mini": ("", "0.23 0.43 0.93 2.98"),
    "apollo_svd": ("", "0.26 0.57 1.29 4.43"),
    "racs": ("", "0.23 0.43 0.93 2.98"),
    "alice_0": ("0.21 0.51 1.20 4.25", "0.26 0.57 1.29 4.44"),
    "alice": ("0.22 0.53 1.24 4.42", "0.26 0.59 1.33 4.60"),
}
TABLE_2 = {  # Alice: speed-up in steps, tokens per second, "effective" ones.
    "60M": (2.22, 92589, "202058"),
    "130M": (2.00, 71583, "141148"),
    "350M": (2.45, 58847, "143088"),
    "1.3B": (2.82, 45523, "123048"),
}
BATCH = 512 * 256  # Tokens.

row = partial(number, PAPER)


def structured_fisher() -> Iterator[Row]:
    """All rows of this paper."""
    for where, formulas in MEMORY.items():
        for method, printed in formulas.items():
            cell = f"{where}, memory, {method}"
            yield formula(PAPER, cell, printed, partial(memory, method))
    yield from costs()
    yield from throughput()
    yield from table_3()
    yield from table_4()
    yield from sizes_and_tokens()
    yield from section_f_4()


def costs() -> Iterator[Row]:
    why = "GG' and the rotations cost m²n, more than m³ where n > m"
    for method, printed in COST.items():
        yield growth(PAPER, f"Table 1, cost, {method}", printed, method, why)


def throughput() -> Iterator[Row]:
    for size, (speed_up, rate, printed) in TABLE_2.items():
        cell = f"Table 2, effective tokens/s, Alice {size}"
        implied = f"{int(printed) / rate:.2f}, not {speed_up:.2f}"
        why = f"the cell implies a speed-up of {implied}"
        yield row(cell, printed, rate * speed_up, why)
    for method, rate, printed in (("Alice", 45523, "15"), ("RACS", 47488, "11")):
        cell = f"Section 7.1, % of throughput lost, {method} 1.3B"
        yield row(cell, printed, 100 * (1 - rate / 53588))


def table_3() -> Iterator[Row]:
    why = "the cell counts r² of a matrix twice, Table 1 once"
    for method, pair in TABLE_3.items():
        for with_head, cells in zip((True, False), pair, strict=True):
            for size, printed in zip(LLAMA, cells.split(), strict=False):
                cell = f"Table 3, GiB, {method} {size}{'' if with_head else '*'}"
                ours = gib(count(method, SIZES[size], with_head))
                yield row(cell, printed, ours, why)


def table_4() -> Iterator[Row]:
    """LLaMA 7B; states of the two 8-bit optimizers have one byte a number."""
    small = SIZES["7B"]._replace(rank=256)
    for method, printed in (("apollo", "15.03"), ("apollo_mini", "13.53")):
        cell = f"Table 4, GiB, {method} 7B"
        yield row(cell, printed, gib(count(method, small)))
    for method, printed in (("adamw", "26"), ("galore", "18")):
        found = count(method, SIZES["7B"])
        cell = f"Table 4, 10^9 bytes, 8-bit {method} 7B"
        yield row(cell, printed, (2 * found.parameters + found.elements) / 1e9)


def sizes_and_tokens() -> Iterator[Row]:
    """Table 10: steps of 512 windows of 256 tokens."""
    steps = {"60M": 10e3, "130M": 20e3, "350M": 60e3, "1.3B": 100e3}
    printed = {"60M": "1.3", "130M": "2.6", "350M": "7.8", "1.3B": "13.1"}
    for size, k in steps.items():
        yield row(f"Table 10, B tokens, {size}", printed[size], k * BATCH / 1e9)
    why = "10K steps are 1.3, as in Table 10"
    yield row("Section F.2, B tokens, 60M", "1.1", steps["60M"] * BATCH / 1e9, why)
    named = SIZES["1.3B"]._replace(width=4096, layers=32)
    cell = "Table 10, B parameters of 1.3B, width {}, {} layers"
    why = "its columns are permuted, see the next row"
    yield row(cell.format(4096, 32), "1.3", size_of(shapes(named)) / 1e9, why)
    yield row(cell.format(2048, 24), "1.3", size_of(shapes(SIZES["1.3B"])) / 1e9)


def section_f_4() -> Iterator[Row]:
    """The total of Alice at 1.3B by its parts; embedding and norms are Adam's."""
    tree = shapes(SIZES["1.3B"])
    layers = tree["layers"]
    norms = layers["attn_norm"], layers["mlp_norm"], tree["norm"]
    others = size_of((tree["embed"], norms))
    found = count("alice", SIZES["1.3B"], with_head=True)
    by_adam = 3 * 2 * others / 2**30
    by_alice = gib(found) - by_adam
    yield row("Section F.4, M by Alice", "1273", (found.parameters - others) / 1e6)
    yield row("Section F.4, M by Adam", "65", others / 1e6)
    yield row("Section F.4, GiB by Adam", "0.37", by_adam)
    why = "the printed total less Adam's part is 4.05, with r² twice"
    yield row("Section F.4, GiB by Alice", "3.86", by_alice, why)
    why = "the printed parts do not add up to the printed total"
    yield row("Section F.4, 3.86 + 0.37", "4.42", 3.86 + 0.37, why)
