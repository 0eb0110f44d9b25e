"""The papers' ablations, as rows of this study: what they vary, and what they found."""

import dataclasses
from collections.abc import Iterable, Sequence

from examples.study.bench.ablations import aro, fisher, muoneq, poet, sumo
from examples.study.bench.ablations.form import Ablation
from examples.study.bench.search import Entry


def _alike(ablations: Sequence[Ablation]) -> tuple[Ablation, ...]:
    """The ablations, with the longest search of a method wherever it appears."""
    trials: dict[tuple[str, str], tuple[int, ...]] = {}
    for variant in (v for x in ablations for v in x.variants):
        name = variant.method, variant.setting
        trials[name] = max(trials.get(name, ()), variant.trials, key=len)

    def searched(variants):
        return tuple(
            dataclasses.replace(v, trials=trials[v.method, v.setting]) for v in variants
        )

    return tuple(
        dataclasses.replace(x, variants=searched(x.variants)) for x in ablations
    )


ABLATIONS = _alike(
    (
        *muoneq.ABLATIONS,
        *aro.ABLATIONS,
        *fisher.ABLATIONS,
        *sumo.ABLATIONS,
        *poet.ABLATIONS,
    )
)


def entries(ablations: Iterable[Ablation] = ABLATIONS) -> list[Entry]:
    """The entries of ablations, each once."""
    return list(dict.fromkeys(v.entry for x in ablations for v in x.variants))
