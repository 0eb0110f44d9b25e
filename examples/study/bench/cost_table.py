"""What the study costs: runs, and hours, by the command that did them."""

from collections.abc import Mapping

from examples.study.bench.config import Config
from examples.study.bench.markdown import lines
from examples.study.bench.search import Results

Origins = Mapping[Config, Mapping[str, str]]


def report(results: Results, origins: Origins) -> str:
    """A row for every study, the longest one first, and their sum."""
    seconds: dict[str, list[float]] = {}
    for config in results.keys() & origins.keys():
        study = origins[config].get("command", "unknown").split()[-1]
        seconds.setdefault(study, []).append(results[config].seconds)
    rows = sorted(seconds.items(), key=lambda row: -sum(row[1]))
    rows.append(("all", [x for _, row in rows for x in row]))
    cells = [[name, str(len(row)), f"{sum(row) / 7200:.1f}"] for name, row in rows]
    return lines(("study", "runs", "hours on two cores"), cells)
