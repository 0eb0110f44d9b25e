"""Learning rates and weight decays of all recipes: the papers', and the study's best.

A recipe is shown as it is called: ``om.<name>(rate)`` is the setting *own* where the
recipe has one, and *matched* otherwise. Methods of *own* have *matched* rows as well,
for updates of AdamW's size (`match_rms`).
"""

import inspect
import re
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import optax_matrix as om
from examples.pretrain.optimizers import OF_ADAMS_SIZE
from examples.study.bench.comparison import all_methods, entry
from examples.study.bench.markdown import lines
from examples.study.bench.methods import OWN_RATES
from examples.study.bench.search import Entry, Results
from examples.study.bench.statistics import REFERENCE, row
from examples.study.bench.tasks import MAIN

RECIPES = {r.__name__: r for group in om.recipes.METHODS.values() for r in group}
# The calls that make the matched rows; others are given `weight_decay=0.1`.
_MATCHED = {"muon": 'muon(scaling="max")', "muonh": "muonh(other=adamw)"}
_RELATIVE = _MATCHED["muonh"]  # Its rate is relative to the weights.


class Rates(NamedTuple):
    """The rates of a method in one setting.

    Attributes:
        method: The call, as in ``muoneq`` or ``galore, then match_rms``.
        paper: What the recipe's docstring says of its learning rate.
        best: Best rate by task; tasks whose runs are missing are left out.
        ratios: These rates over AdamW's best of the same task.
    """

    method: str
    paper: str
    best: dict[str, float]
    ratios: dict[str, float]


def rows(results: Results) -> list[Rates]:
    """The rates of AdamW, of all recipes as they are called, then of rescaled ones."""
    adamw = _best(lambda task: entry(task, REFERENCE), results)
    found = [Rates(REFERENCE, "", adamw, dict.fromkeys(adamw, 1.0))]
    for name in RECIPES:
        setting = "own" if name in OWN_RATES else "matched"
        found.append(_rates(name, setting, name, results, adamw))
    for name in OWN_RATES:
        found.append(_rates(name, "matched", _rescaled(name), results, adamw))
    return [rates for rates in found if rates.best]


def report(results: Results) -> str:
    """The table of the rates, and what the ratios say together."""
    found = rows(results)
    headings = "method", "over AdamW", *MAIN, "rate in the paper"  # As phones show.
    text = lines(headings, [_cells(rates) for rates in found])
    of_adams_size = [
        r for r in found if r.method not in {REFERENCE, _RELATIVE, *OWN_RATES}
    ]
    ratios = [ratio for rates in of_adams_size for ratio in rates.ratios.values()]
    if not ratios:
        return text
    usual = sum(2 <= ratio <= 16 for ratio in ratios)
    return (
        f"{text}\n\nOf the {len(ratios)} ratios of methods whose updates are as large "
        f"as those of AdamW, {usual} are 2, 4, 8 or 16. The median is "
        f"{statistics.median(ratios):g}."
    )


def decays(results: Results | None = None) -> str:
    """The table of default weight decays: matrices and other leaves with two axes."""
    del results
    by_decay: dict[float, list[str]] = {}
    for name, recipe in RECIPES.items():
        default = inspect.signature(recipe).parameters["weight_decay"].default
        if default is None:  # Muon chooses by its scaling.
            by_decay.setdefault(0.0, []).append(f"`{name}`")
            by_decay.setdefault(0.1, []).append(f"`{_MATCHED[name]}`")
        else:
            by_decay.setdefault(float(default), []).append(f"`{name}`")
    cells = [[f"{d:g}", ", ".join(by_decay[d])] for d in sorted(by_decay, reverse=True)]
    return lines(("`weight_decay`", "recipes"), cells)


def paper_rate(name: str) -> str:
    """What a recipe's docstring says of its rate; that of its base for a preset."""
    doc = inspect.getdoc(RECIPES[name]) or ""
    entry_of = r"\n    learning_rate: (.*?)\n    \w+: "
    if found := re.search(entry_of, doc, re.DOTALL):
        text = " ".join(found[1].split())
        text = re.split(r"a schedule[;.] ?", text, maxsplit=1)[-1]
        return text.rstrip(".").replace("``", "`")
    base = re.search(r"\*\*options: Those of `(\w+)`", doc)
    return paper_rate(base[1]) if base else ""


def _rescaled(name: str) -> str:
    """How to call the matched row of a method that has a setting of its own."""
    if name in OF_ADAMS_SIZE:
        return _MATCHED.get(name, f"{name}(weight_decay=0.1)")
    return f"{name}, then match_rms"


def _rates(
    name: str, setting: str, shown: str, results: Results, adamw: dict[str, float]
) -> Rates:
    def of(task: str) -> Entry | None:
        for e in all_methods(task):
            if (e.method.partition(":")[0], e.setting) == (name, setting):
                return e
        return None

    best = _best(of, results)
    ratios = {t: best[t] / adamw[t] for t in best if t in adamw}
    return Rates(shown, paper_rate(name) if shown == name else "", best, ratios)


def _best(of: Callable[[str], Entry | None], results: Results) -> dict[str, float]:
    found: dict[str, Any] = {t: e and row(e, results) for t in MAIN if (e := of(t))}
    return {task: r.rate for task, r in found.items() if r}


def _cells(rates: Rates) -> list[str]:
    ratios = [f"{ratio:.3g}" for ratio in rates.ratios.values()]
    best = [f"{rates.best[t]:.2g}" if t in rates.best else "" for t in MAIN]
    name, *then = rates.method.split(", then ")
    shown = ", then ".join(f"`{part}`" for part in (name, *then))
    return [shown, ", ".join(ratios), *best, rates.paper]
