"""Prints the tables of the papers that are named, by default of all."""

import argparse

from examples.study.paper_tables.papers import PAPERS
from examples.study.paper_tables.rows import table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.study paper-tables", description=__doc__
    )
    known = f"one or more of {', '.join(PAPERS)}; default: all"
    parser.add_argument("papers", nargs="*", metavar="PAPER", help=known)
    names = parser.parse_args(arguments).papers or list(PAPERS)
    if unknown := [name for name in names if name not in PAPERS]:
        parser.error(
            f"papers must be among {', '.join(PAPERS)}, got {', '.join(unknown)}"
        )
    print(table(row for name in names for row in PAPERS[name]()))
