"""What the trials found: lines while they run, the table, the page."""

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

from examples.frameworks._environments import ENVIRONMENTS

Rows = list[tuple[str, ...]]
HEAD = ("framework", "versions", "method", "loss", "resumed", "state", "leaves")


@dataclasses.dataclass(frozen=True)
class Result:
    """What one framework's trial gave, by method; or why there is nothing."""

    versions: str = ""
    first: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resumed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
    skipped: str = ""
    date: str = dataclasses.field(default_factory=lambda: str(dt.date.today()))


def faults(result: Result) -> Iterator[str]:
    """Each thing that is not as it must be."""
    if result.error:
        yield result.error
    for method, first in result.first.items():
        second = result.resumed.get(method, {"error": "did not run"})
        broken = first.get("error") or second.get("error")
        if broken:
            yield f"{method}: {broken}"
            continue
        if first["stopped"] + second["losses"] != first["losses"]:
            gap = _apart(first, second)
            yield f"{method}: losses after the restart differ by {gap}"
        if not first["losses"][-1] < first["losses"][0]:
            yield f"{method}: the loss did not fall"
        for path, group in first["wrong"].items():
            yield f"{method}: {path} is {group!r}, another group than the table's"


def lines(name: str, result: Result) -> str:
    """A framework's part of the table, and its faults."""
    wrong = "\n".join(f"  FAULT {fault}" for fault in faults(result))
    return "\n".join(filter(None, [aligned(_rows(name, result)), wrong]))


def table(results: Mapping[str, Result]) -> str:
    """All frameworks, a row for each method."""
    return aligned([HEAD, *(r for n, x in results.items() for r in _rows(n, x))])


def status(results: Mapping[str, Result]) -> int:
    """1 where something failed, or was skipped that may not be."""
    skipped = any(x.skipped and ENVIRONMENTS[n].required for n, x in results.items())
    return int(skipped or any(any(faults(x)) for x in results.values()))


def page(results: Mapping[str, Result]) -> str:
    """The table as the documentation's page has it."""
    cells = [HEAD]
    for name, result in results.items():
        first, *rest = _rows(name, result)
        cells += [first, *(("", "", *row[2:]) for row in rest)]
    dates = " and ".join(sorted({x.date for x in results.values()}))
    return f"Run on {dates} by ``make test-frameworks``:\n\n{list_table(cells)}"


def list_table(cells: Rows) -> str:
    """Rows as a page has them, the first one as their head."""
    rows = ["   * - " + "\n     - ".join(row) for row in cells]
    body = [line.rstrip() for row in rows for line in row.split("\n")]
    return "\n".join([".. list-table::", "   :header-rows: 1", "", *body, ""])


def _rows(name: str, result: Result) -> Rows:
    blank = ("",) * 3
    if result.skipped or result.error:
        reason = result.skipped or result.error
        return [(name, result.versions, "-", reason, *blank)]
    rows = []
    for method, first in result.first.items():
        second = result.resumed.get(method, {"error": "did not run"})
        broken = first.get("error") or second.get("error")
        if broken:
            rows.append((name, result.versions, method, broken[:60], *blank))
            continue
        size = first["bytes"] / max(1, result.first.get("adamw", {}).get("bytes", 0))
        right = first["leaves"] - len(first["wrong"])
        rows.append(
            (
                name,
                result.versions,
                method,
                f"{first['losses'][0]:.3f} to {first['losses'][-1]:.3f}",
                _apart(first, second),
                f"{first['bytes'] / 1e3:.1f} kB, {size:.2f}",
                "" if method == "adamw" else f"{right} of {first['leaves']}",
            )
        )
    return rows


def _apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """How far the losses with a restart are from those without."""
    got, want = first["stopped"] + second["losses"], first["losses"]
    if len(got) != len(want):
        return f"{len(got)} losses in place of {len(want)}"
    gap = max(abs(a - b) for a, b in zip(got, want, strict=True))
    return "equal" if gap == 0 else f"{gap:.1e}"


def aligned(rows: Rows) -> str:
    """Columns of equal width."""
    widths = (
        [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    )
    pad = lambda row: "  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True))
    return "\n".join(pad(row).rstrip() for row in rows)
