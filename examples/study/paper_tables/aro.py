"""ARO: sizes of Tables 4 and 5, and lengths of the runs."""

from collections.abc import Iterator
from functools import partial

from examples.study.paper_tables.rows import Row, number

row = partial(number, "ARO")


def aro() -> Iterator[Row]:
    """All rows of this paper; head and embedding are two matrices."""
    width, layers, vocabulary = 1024, 22, 128256
    attention, expert, router = 4 * width * 16 * 64, 3 * width * 512, 46 * width
    total = layers * (attention + 47 * expert + router) + 2 * vocabulary * width
    active = layers * (attention + 5 * expert + router)
    yield row("Table 4, B parameters", "2", total / 1e9)
    why = "four routed experts and the shared one; 531 with embedding and head"
    why = why.replace("531", f"{(active + 2 * vocabulary * width) / 1e6:.0f}")
    yield row("Section 5.5, M active parameters", "200", active / 1e6, why)
    yield row("Section 5.5, B tokens", "100", 24000 * 4 * 2**20 / 1e9)
    width, layers, vocabulary = 4096, 36, 151936
    block = 4 * width * 20 * 128 + 3 * width * 12288
    total = layers * block + 2 * vocabulary * width
    yield row("Table 5, B parameters", "8.2", total / 1e9)
    cell = "Section 5.6, multiple of 20 tokens a parameter"
    yield row(cell, "4", 46000 * 14e6 / (20 * total))
    yield row("Section B.3, warm-up in %", "0.8", 100 * 400 / 46000)
