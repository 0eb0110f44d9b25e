"""The papers' ablations, as rows of this study: what they vary, and what they found."""

from collections.abc import Iterable

from examples.bench.ablations import aro, fisher, muoneq, poet, sumo
from examples.bench.ablations.form import Ablation
from examples.bench.search import Entry

ABLATIONS = (
    *muoneq.ABLATIONS,
    *aro.ABLATIONS,
    *fisher.ABLATIONS,
    *sumo.ABLATIONS,
    *poet.ABLATIONS,
)


def entries(ablations: Iterable[Ablation] = ABLATIONS) -> list[Entry]:
    """The entries of ablations, each once."""
    variants = [variant for x in ablations for variant in x.variants]
    variants.sort(key=lambda v: len(v.trials))  # The longest search of a method counts.
    return list({v.method: v.entry for v in variants}.values())
