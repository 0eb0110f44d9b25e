"""The main comparison: every method on a task, and the best of them."""

import dataclasses
import functools
import re
from typing import Any

from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import NAMES, OPTIMIZERS
from examples.study.bench import results as committed
from examples.study.bench.methods import OWN_RATES
from examples.study.bench.search import (
    FEW_TRIALS,
    FRESH,
    Entry,
    Results,
    best_rate,
    is_finished,
)
from examples.study.bench.statistics import REFERENCE, Row, ranked
from examples.study.bench.tasks import TASKS

LEFT_OUT = {"lora"}  # It fine-tunes.
# Methods whose runs of a task are to come; without its line, `bench run` does them.
WAITING = {"shakespeare": {"kron", "muonh"}}
# On a CPU the roots come six times faster by eigenvectors than by Newton's iteration.
OPTIONS = {"shampoo": "shampoo:method=eigh"}
# On a CPU a run of the larger model takes three times as long with Newton's iteration.
OF_THE_LARGER = {"mousse": ":method=eigh"}
# Matched to AdamW's size they would lose what they consist of: APOLLO-Mini becomes the
# normalized gradient, and RACS loses its limiter. They have their own setting only.
NOT_MATCHED = {"racs", "apollo_mini"}
FIRST = REFERENCE, "muon", "muoneq", "aro", "racs", "alice", "sumo", "poet"
_REST = [name for name in OPTIMIZERS if name not in {*FIRST, *LEFT_OUT}]
MATCHED = [
    OPTIONS.get(name, name) for name in (*FIRST, *_REST) if name not in NOT_MATCHED
]


class NotYetError(UserError):
    """A study that takes methods from one that is not finished."""


def entry(task: str, method: str, setting: str = "matched", **other: Any) -> Entry:
    """An entry with the steps, batch and first learning rate of its task."""
    t = TASKS[task]
    rate = OWN_RATES[method.split(":")[0]] if setting == "own" else t.rate
    defaults = {"rate": rate, "steps": t.steps, "batch": t.batch}
    return Entry(task, method, setting, **defaults | other)


def best(
    task: str, count: int, results: Results, also: tuple[str, ...] = ()
) -> list[Entry]:
    """AdamW and the best methods of a task, each in its better setting.

    Args:
        task: A task on which all methods have run.
        count: How many methods.
        results: The runs.
        also: Methods that are there even if they are not among the best.

    Returns:
        AdamW's entry, then those of the others, smallest loss first.

    Raises:
        NotYetError: If runs of the task are missing.
    """
    entries = all_methods(task)
    _require(entries, results, f"the best {count} methods")
    others: dict[str, Entry] = {}
    for row in ranked(entries, results):
        others.setdefault(row.entry.method, row.entry)
    del others[REFERENCE]
    names = list(others)
    chosen = names[:count] + [name for name in names[count:] if name in also]
    return [entry(task, REFERENCE), *(others[name] for name in chosen)]


def better(task: str, method: str, results: Results) -> Row:
    """A method of a task in the better of its settings.

    Raises:
        NotYetError: If its runs are missing.
    """
    entries = [e for e in all_methods(task) if e.method == method]
    _require(entries, results, f"the better setting of {method}")
    return ranked(entries, results)[0]


def _require(entries, results, what):
    """NotYetError if runs are missing of what a study takes from another one."""
    if not all(is_finished(e, results) for e in entries):
        task = entries[0].task
        raise NotYetError(
            f"This study takes {what} of `{task}`; finish that one first: "
            f"python -m examples.study bench run {task}"
        )


def all_methods(task: str, new: bool = False) -> list[Entry]:
    """Every method, matched to AdamW, and as in its paper where that differs.

    Methods that the committed file has no run of are there only if they are to be run,
    with ``new``: no table and no study waits for them.
    """
    matched = [entry(task, name) for name in MATCHED]
    own = [entry(task, OPTIONS.get(name, name), "own") for name in OWN_RATES]
    waits = WAITING.get(task, set()) | (set() if new else not_run())
    return [e for e in matched + own if e.method.partition(":")[0] not in waits]


@functools.cache
def not_run() -> frozenset[str]:
    """The methods that the committed file has no run of."""
    path = committed.PATH
    ran = re.findall(r'"method": "(\w+)', path.read_text() if path.exists() else "")
    return frozenset(NAMES) - {*ran} if ran else frozenset()


def moved(
    entry: Entry, results: Results, task: str, steps: float = 1, batch: float = 1
) -> Entry:
    """An entry elsewhere: three rates around its best one, and fresh seeds.

    Args:
        entry: A row whose runs are finished.
        results: The runs.
        task: Where it goes, perhaps its own task.
        steps: A factor of that task's steps.
        batch: A factor of that task's batch.
    """
    t = TASKS[task]
    options = OF_THE_LARGER if task == "large" else {}
    return dataclasses.replace(
        entry,
        task=task,
        method=entry.method + options.get(entry.method.partition(":")[0], ""),
        steps=int(t.steps * steps),
        batch=int(t.batch * batch),
        rate=best_rate(entry, results),
        trials=FEW_TRIALS,
        seeds=FRESH,
    )
