"""Prints the tables of the papers that are named, by default of all."""

import sys

from examples.paper_tables.papers import PAPERS
from examples.paper_tables.rows import table

names = sys.argv[1:] or list(PAPERS)
if unknown := [name for name in names if name not in PAPERS]:
    sys.exit(f"Papers must be among {', '.join(PAPERS)}, got {', '.join(unknown)}.")
print(table(row for name in names for row in PAPERS[name]()))
