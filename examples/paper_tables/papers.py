"""The papers, by the name that the command line takes."""

from examples.paper_tables.aro import aro
from examples.paper_tables.muoneq import muoneq
from examples.paper_tables.poet import poet
from examples.paper_tables.structured_fisher import structured_fisher
from examples.paper_tables.sumo import sumo

PAPERS = {f.__name__: f for f in (muoneq, poet, aro, sumo, structured_fisher)}
