"""The studies: which methods run on which task, at which length and batch."""

from collections.abc import Callable

from examples.bench import ablations
from examples.bench.methods import OWN_RATES
from examples.bench.search import Entry
from examples.bench.tasks import TASKS
from examples.pretrain.optimizers import OPTIMIZERS

LEFT_OUT = {"lora"}  # It fine-tunes.
MATCHED = [name for name in OPTIMIZERS if name not in LEFT_OUT]


def entry(task: str, method: str, setting: str = "matched", **other) -> Entry:
    """An entry with the steps, batch and first learning rate of its task."""
    t = TASKS[task]
    rate = t.rate if setting == "matched" else OWN_RATES[method.split(":")[0]]
    defaults = {"rate": rate, "steps": t.steps, "batch": t.batch}
    return Entry(task, method, setting, **defaults | other)


def _anchor():
    """AdamW at nanoGPT's learning rate and length."""
    return [entry("shakespeare", "adamw", steps=2000, is_tuned=False)]


def _all_methods(task):
    matched = [entry(task, name) for name in MATCHED]
    return matched + [entry(task, name, "own") for name in OWN_RATES]


STUDIES: dict[str, Callable[[], list[Entry]]] = {
    "anchor": _anchor,
    "shakespeare": lambda: _all_methods("shakespeare"),
    "books": lambda: _all_methods("books"),
    "digits": lambda: _all_methods("digits"),
    "ablations": ablations.entries,
}
