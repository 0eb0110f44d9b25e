"""Tables of the page of GPUs from what was measured: ``results/device.jsonl``.

    python -m examples.study device-table
    python -m examples.study device-table --add results/steps.json --note "..."

The second one adds measurements of `examples.study device`, without the kernels that
take little time.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence
from typing import Any

PATH = pathlib.Path(__file__).parents[1] / "results" / "device.jsonl"
_KEPT = 12  # Kernels of a profile, all of them in one line included.
_LEFT_OUT = ("module", "programs", "ahead", "root", "tiny", "profile")
_STEPS = ("method", "ms", "slowest", "memory", "ms at 16 x 1024/4096")
BEFORE = "of c76971b"


def measured() -> list[dict[str, Any]]:
    """What was measured, oldest first."""
    return [json.loads(line) for line in PATH.read_text().splitlines()]


def steps(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a table of steps, the latest measurement of each method.

    A star marks what was measured before kernels were changed for what it showed.
    """
    latest = {(r["model"], r["name"]): r for r in rows if r["part"] == "steps"}
    small = [row for (model, _), row in latest.items() if model == "small"]
    lines = [_line(_STEPS), "|---" * len(_STEPS) + "|"]
    for row in sorted(small, key=_steady):
        star = "\\*" if BEFORE in row["note"] else ""
        name, numbers = f"`{row['name']}`{star}", (_steady(row), row["slowest_ms"])
        larger = latest.get(("medium", row["name"]))
        last = _short(_steady(larger)) if larger else ""
        cells = [name, *map(_short, numbers), f"{row['memory']:.1f}", last]
        lines.append(_line(cells))
    return lines


def newton_schulz(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a table of both forms of Newton-Schulz on each stack."""
    titles = ("stack", "XLA ms", "share", "own ms", "share", "faster")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["part"] == "kernels":
            found.setdefault(row["name"], {})[row["form"]] = row
    lines = [_line(titles), "|---" * len(titles) + "|"]
    for name, forms in found.items():
        if len(forms) < 2:
            continue
        xla, own = forms["xla"], forms["pallas"]
        size, count = name.removeprefix("newton_schulz ").split(", ")
        cells = [f"{count.removesuffix(' of them')} x {size}"]
        for form in (xla, own):
            cells += [_short(form["ms"]), f"{form['share']:.0%}"]
        lines.append(_line([*cells, _short(xla["ms"] / own["ms"])]))
    return lines


def _steady(row: dict[str, Any]) -> float:
    """Milliseconds of a step without a renewal: in a batch of steps, or alone."""
    return min(row["ms"], row["single_ms"])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(x: float) -> str:
    return f"{x:.3g}" if x < 100 else f"{x:.0f}"


def _add(path: pathlib.Path, note: str) -> None:
    kept = []
    for row in json.loads(path.read_text()):
        if "error" in row:
            continue
        one = {k: x for k, x in row.items() if k not in _LEFT_OUT and x is not None}
        profile = row.get("profile")
        if isinstance(profile, list):
            one["profile"] = [(k, n, round(ms, 4)) for k, n, ms in profile[:_KEPT]]
        kept.append(json.dumps({"part": path.stem, "note": note, **one}))
    with PATH.open("a") as file:
        file.writelines(line + "\n" for line in kept)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables, or adds measurements."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.study device-table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--add", type=pathlib.Path, help="a part's JSON")
    parser.add_argument("--note", default="", help="what it was measured with")
    args = parser.parse_args(argv)
    if args.add:
        _add(args.add, args.note)
        return
    rows = measured()
    tables = steps(rows), newton_schulz(rows)
    print("\n\n".join("\n".join(table) for table in tables))
