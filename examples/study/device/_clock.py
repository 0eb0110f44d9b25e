"""Times of compiled functions, and tables."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

_BATCH = 0.05  # Seconds of work between two looks at the clock.


def milliseconds(f: Callable[..., Any], *args: Any, batches: int = 7) -> float:
    """The median time of a call, dispatched in batches; after two calls as warm-up."""
    for _ in range(2):
        jax.block_until_ready(f(*args))
    start = time.perf_counter()
    jax.block_until_ready(f(*args))
    count = max(1, round(_BATCH / (time.perf_counter() - start)))
    times = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(count):
            out = f(*args)
        jax.block_until_ready(out)
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times) * 1e3


def columns(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in plain text; the first column is on the left."""
    cells = [list(titles), *([_cell(x) for x in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    line = lambda row: "  ".join(
        text.ljust(width) if i == 0 else text.rjust(width)
        for i, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return "\n".join(map(line, cells))


def _cell(x: Any) -> str:
    if x is None:
        return "-"
    return x if isinstance(x, str) else f"{x:.3g}" if abs(x) < 100 else f"{x:.0f}"


def machine() -> str:
    """The device and the version of JAX."""
    device = jax.devices()[0]
    return f"{device.device_kind}, jax {jax.__version__}"
