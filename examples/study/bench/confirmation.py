"""Confirming what the search found: fresh seeds, then other lengths and a larger model.

A chain has to beat the best published method on every task, beyond the interval, also
where these have a shorter momentum. Only chains that do go on to the rest, with AdamW
and the published methods.
"""

import dataclasses
import math

import optax_matrix as om
from examples.pretrain.options import keywords
from examples.study.bench import halving
from examples.study.bench.comparison import NotYetError, best, entry, moved
from examples.study.bench.search import Entry, Results, is_finished
from examples.study.bench.statistics import Row, difference, ranked
from examples.study.bench.tasks import MAIN

# Nothing was chosen on SEEDS. What runs again because of their results has LATER.
SEEDS, LATER = tuple(range(10, 20)), tuple(range(20, 30))
PUBLISHED = 3  # The best methods of each task's comparison, beside AdamW.
SHORTER = 0.8  # A second momentum of these, since short runs gain by it.
_SHORTER = f":b1={SHORTER}"


def entries(task: str, results: Results) -> list[Entry]:
    """AdamW, the best published methods of a task, and the chains of the search.

    The published methods are there once more with a shorter momentum.

    Raises:
        NotYetError: If the search or the comparison is not finished.
    """
    chains = halving.finalists(results)
    if chains is None:
        raise NotYetError(
            "This study takes the five best chains of `search`; finish that one first: "
            "python -m examples.study bench run search"
        )
    adamw, *others = [(e.method, e.setting) for e in best(task, PUBLISHED, results)]
    again = [(f"{x}{_SHORTER}", kind) for x, kind in others if _has_momentum(x)]
    names = [adamw, *others, *again, *((name, "matched") for name in chains)]
    return [entry(task, *name, seeds=SEEDS) for name in names]


def with_shorter_chains(results: Results) -> list[Entry]:
    """The confirmation on *books* with the shorter momentum for the chains, too.

    It was added on seeing the other confirmations, so it has other seeds.

    Raises:
        NotYetError: If the search or the comparison is not finished.
    """
    found = entries("books", results)
    names = [e.method + _SHORTER * is_chain(e) for e in found]
    return [
        dataclasses.replace(e, method=name, seeds=LATER)
        for e, name in zip(found, names, strict=True)
    ]


def _has_momentum(method: str) -> bool:
    """Whether a published method, perhaps with options, has a momentum."""
    return "b1" in keywords(getattr(om, method.partition(":")[0]))


def is_chain(entry: Entry) -> bool:
    """Whether an entry is of the search, and not a published method."""
    return entry.method.startswith("chain:")


def is_shortened(entry: Entry) -> bool:
    """Whether an entry has the shorter momentum."""
    return entry.method.endswith(_SHORTER)


def compared(rows: list[Row]) -> tuple[Row, dict[str, tuple[float, float]]]:
    """The chains against the published method with the smallest loss.

    Returns:
        The row of that method, and for each chain the mean difference of the losses to
        it with half of its confidence interval. All intervals of a task hold
        together with 95% (Bonferroni).
    """
    target = min((r for r in rows if not is_chain(r.entry)), key=lambda row: row.loss)
    chains = [row for row in rows if is_chain(row.entry)]
    count = halving.CHOSEN
    return target, {r.entry.method: difference(r, target, count) for r in chains}


def survivors(results: Results) -> list[str]:
    """The chains that beat the best published method on every task.

    Raises:
        NotYetError: If the confirmation of a task is not finished.
    """
    left = halving.finalists(results) or []
    for task in MAIN:
        found = entries(task, results)
        if not all(is_finished(e, results) for e in found):
            raise NotYetError(
                f"This study takes the chains that `confirm_{task}` leaves; finish "
                f"that one first: python -m examples.study bench run confirm_{task}"
            )
        _, chains = compared(ranked(found, results))
        left = [name for name in left if beats(*chains[name])]
    return left


def beats(mean: float, half: float) -> bool:
    """Whether a difference of losses is below zero, and its interval too."""
    return math.isfinite(mean) and mean + half < 0


def beyond(results: Results, task: str, steps: float = 1) -> list[Entry]:
    """The published methods and the chains that are left, at another length or size.

    Args:
        results: The runs.
        task: `books`, or `large`, which has the methods of `shakespeare`.
        steps: A factor of the task's steps.

    Returns:
        The entries; none if no chain is left.

    Raises:
        NotYetError: If the confirmation of a task is not finished.
    """
    left = survivors(results)
    if not left:
        return []
    return [
        dataclasses.replace(moved(e, results, task, steps), seeds=LATER)
        for e in entries("shakespeare" if task == "large" else task, results)
        if not is_chain(e) or e.method in left
    ]
