"""The studies: which methods run on which task, at which length and batch.

Some take the best methods of another one, so a study is a function of the results.
"""

from collections.abc import Callable, Mapping
from typing import Any

from examples.bench import ablations, halving
from examples.bench.methods import OWN_RATES
from examples.bench.search import FEW_TRIALS, Entry, Results, best_rate, is_finished
from examples.bench.statistics import REFERENCE, ranked
from examples.bench.tasks import TASKS
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import OPTIMIZERS

LEFT_OUT = {"lora"}  # It fine-tunes.
FIRST = REFERENCE, "muon", "muoneq", "aro", "racs", "alice", "sumo", "poet"
MATCHED = [*FIRST, *(n for n in OPTIMIZERS if n not in {*FIRST, *LEFT_OUT})]
# Changes of the task `books`.
CONDITIONS: Mapping[str, Mapping[str, float]] = {
    "shorter": {"steps": 1 / 4},
    "longer": {"steps": 4},
    "smaller_batch": {"batch": 1 / 4},
    "larger_batch": {"batch": 4},
}
CONFIRMING = tuple(range(10, 20))  # Seeds that nothing was chosen on.


class NotYetError(UserError):
    """A study that takes methods from one that is not finished."""


def entry(task: str, method: str, setting: str = "matched", **other: Any) -> Entry:
    """An entry with the steps, batch and first learning rate of its task."""
    t = TASKS[task]
    rate = t.rate if setting == "matched" else OWN_RATES[method.split(":")[0]]
    defaults = {"rate": rate, "steps": t.steps, "batch": t.batch}
    return Entry(task, method, setting, **defaults | other)


def best(task: str, count: int, results: Results) -> list[Entry]:
    """AdamW and the best methods of a task.

    Raises:
        NotYetError: If runs of the task are missing.
    """
    entries = _all_methods(task)
    if not all(is_finished(e, results) for e in entries):
        raise NotYetError(
            f"This study takes the best {count} methods of `{task}`; finish that one "
            f"first: python -m examples.bench run {task}"
        )
    rows = [row.entry for row in ranked(entries, results)]
    others = [e for e in rows if e.method != REFERENCE]
    return [entry(task, REFERENCE), *others[:count]]


def _all_methods(task):
    matched = [entry(task, name) for name in MATCHED]
    return matched + [entry(task, name, "own") for name in OWN_RATES]


def _anchor():
    """AdamW at nanoGPT's learning rate and length."""
    return [entry("shakespeare", REFERENCE, steps=2000, trials=())]


def _under(condition: str, results: Results):
    """The best six of `books` under one condition."""
    factors = CONDITIONS[condition]
    return [
        entry(
            e.task,
            e.method,
            e.setting,
            rate=best_rate(e, results),
            trials=FEW_TRIALS,
            **{name: int(getattr(e, name) * x) for name, x in factors.items()},
        )
        for e in best("books", 6, results)
    ]


def _large(results):
    """The best ten of `shakespeare`, around their learning rates there."""
    return [
        entry(
            "large",
            e.method,
            e.setting,
            rate=best_rate(e, results),
            trials=FEW_TRIALS,
        )
        for e in best("shakespeare", 10, results)
    ]


def _confirm(task, results):
    """The five chains of the search and the best published methods, on fresh seeds."""
    found = halving.finalists(results)
    if found is None:
        raise NotYetError(
            "This study takes the five best chains of `search`; finish that one first: "
            "python -m examples.bench run search"
        )
    published = best(task, 3, results)
    names = [(e.method, e.setting) for e in published]
    names += [(name, "matched") for name in found]
    return [entry(task, *name, seeds=CONFIRMING) for name in names]


STUDIES: dict[str, Callable[[Results], list[Entry]]] = {
    "anchor": lambda _: _anchor(),
    "shakespeare": lambda _: _all_methods("shakespeare"),
    "books": lambda _: _all_methods("books"),
    "digits": lambda _: _all_methods("digits"),
    "coefficients": lambda _: ablations.entries([ablations.COEFFICIENTS]),
    "ablations": lambda _: ablations.entries(),
    **{name: lambda found, name=name: _under(name, found) for name in CONDITIONS},
    "large": _large,
    "search": halving.entries,
    **{
        f"confirm_{task}": lambda found, task=task: _confirm(task, found)
        for task in ("shakespeare", "books", "digits")
    },
}
