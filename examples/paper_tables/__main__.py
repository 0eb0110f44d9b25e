"""Prints the tables of the papers that are named, by default of all."""

import sys

from examples.paper_tables.papers import PAPERS
from examples.paper_tables.rows import table

print(table(row for name in sys.argv[1:] or PAPERS for row in PAPERS[name]()))
