"""The studies: which methods run on which task, at which length and batch.

Some take the best methods of another one, so a study is a function of the results.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from examples.study.bench import (
    ablation_table,
    ablations,
    bf16,
    confirmation,
    halving,
    orders,
)
from examples.study.bench.comparison import (
    all_methods,
    best,
    entry,
    moved,
)
from examples.study.bench.search import Entry, Results
from examples.study.bench.statistics import REFERENCE
from examples.study.bench.tasks import MAIN, TASKS

# Tasks under other conditions: factors of their steps or batch.
CONDITIONS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "shorter": ("books", {"steps": 1 / 4}),
    "longer": ("books", {"steps": 4}),
    "smaller_batch": ("books", {"batch": 1 / 4}),
    "larger_batch": ("books", {"batch": 4}),
    "longer_digits": ("digits", {"steps": 4}),
}


def _anchor():
    """AdamW at nanoGPT's learning rate and length."""
    return [entry("shakespeare", REFERENCE, steps=2000, trials=())]


def _adamw_rates():
    """AdamW's rates on `digits`, where one seed does not show which is the best."""
    powers = -1, 0, 1, 2, 3
    rates = [TASKS["digits"].rate * 2.0**power for power in powers]
    return [entry("digits", REFERENCE, rate=rate, trials=()) for rate in rates]


# Where AdamW was tuned further: rates of *books* come from that, others are searched.
TUNED: Mapping[str, Mapping[str, Any]] = {
    "books": {"rate": 0.004, "trials": ()},
    "digits": {},
}


def tuned(task: str) -> Entry:
    """AdamW with a rate of its own for the other leaves, and a longer warm-up."""
    return entry(task, REFERENCE, "tuned", **TUNED[task])


def _coefficients():
    """The ablation of the coefficients of Newton-Schulz, as in `ablations`."""
    title = ablations.muoneq.COEFFICIENTS.title
    return [ablation for ablation in ablations.ABLATIONS if ablation.title == title]


def _under(condition: str, results: Results):
    """AdamW, the best six methods of a task and Muon, under one condition."""
    task, factors = CONDITIONS[condition]
    chosen = best(task, 6, results, also=("muon",))
    return [moved(e, results, task, **factors) for e in chosen]


def _large(results):
    """The best ten of `shakespeare` on the larger model."""
    return [moved(e, results, "large") for e in best("shakespeare", 10, results)]


STUDIES: dict[str, Callable[[Results], list[Entry]]] = {
    "anchor": lambda _: _anchor(),
    "shakespeare": lambda _: all_methods("shakespeare"),
    "books": lambda _: all_methods("books"),
    "digits": lambda _: all_methods("digits"),
    "adamw_rates": lambda _: _adamw_rates(),
    **{
        f"tuned_{task}": lambda _, task=task: [entry(task, REFERENCE), tuned(task)]
        for task in TUNED
    },
    "coefficients": lambda _: ablations.entries(_coefficients()),
    "ablations": lambda _: ablations.entries(),
    "reversals": partial(orders.entries, ablation_table.REVERSED),
    "levels": partial(orders.entries, ablation_table.LEVEL),
    **{name: lambda found, name=name: _under(name, found) for name in CONDITIONS},
    "large": _large,
    "bf16": bf16.entries,
    "search": halving.entries,
    **{
        f"confirm_{task}": lambda found, task=task: confirmation.entries(task, found)
        for task in MAIN
    },
    "confirm_momentum": confirmation.with_shorter_chains,
    "confirm_shorter": lambda found: confirmation.beyond(found, "books", 1 / 4),
    "confirm_longer": lambda found: confirmation.beyond(found, "books", 4),
    "confirm_large": lambda found: confirmation.beyond(found, "large"),
}
