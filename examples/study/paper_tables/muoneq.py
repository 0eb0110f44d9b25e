"""MuonEq: its peak memory is Muon's (Table 1)."""

from collections.abc import Iterator

import optax_matrix as om
from examples.study.memory_table import SIZES, shapes
from examples.study.paper_tables.rows import Row, number
from optax_matrix.diagnostics import state_bytes

TABLE_1 = {"130M": ("12.52", "12.52"), "350M": ("28.18", "28.18")}
TABLE_1 |= {"1.3B": ("34.81", "34.81")}  # Printed as 1B.


def muoneq() -> Iterator[Row]:
    """All rows of this paper: bytes that MuonEq's state has more than Muon's."""
    for size, (ours, muons) in TABLE_1.items():
        params = shapes(SIZES[size])
        more = (
            state_bytes(om.muoneq(1e-3), params).bytes
            - state_bytes(om.muon(1e-3), params).bytes
        )
        cell = f"Table 1, GB above Muon's {muons}, {size}"
        yield number("MuonEq", cell, f"{float(ours) - float(muons):.2f}", more / 1e9)
