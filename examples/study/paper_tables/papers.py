"""The papers, by the name that the command line takes."""

from examples.study.paper_tables.aro import aro
from examples.study.paper_tables.muoneq import muoneq
from examples.study.paper_tables.poet import poet
from examples.study.paper_tables.structured_fisher import structured_fisher
from examples.study.paper_tables.sumo import sumo

PAPERS = {f.__name__: f for f in (muoneq, poet, aro, sumo, structured_fisher)}
