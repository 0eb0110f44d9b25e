"""What the search for a chain found: its last round, and what each part is worth."""

import math
import statistics

from examples.study.bench import halving
from examples.study.bench.chains import KNOWN, PARTS
from examples.study.bench.markdown import lines
from examples.study.bench.search import Results, expected


def report(results: Results) -> str:
    """The chains of the last round, and the parts in the first one."""
    found = halving.last_round(results)
    if found is None:
        left = sum(expected(e, results) for e in halving.entries(results))
        return f"The search is under way: {left} runs are left of its present round."
    return "\n\n".join((_chains(found), _parts(results)))


def _chains(found):
    tasks = halving.TASK_1, halving.TASK_2
    rows = [
        [f"`{name}`", KNOWN.get(name, ""), *(_number(losses[task]) for task in tasks)]
        for name, losses in found.items()
    ]
    return lines(("chain", "known as", *(f"loss on `{task}`" for task in tasks)), rows)


def _parts(results):
    """What every choice of a part is worth, in chains that are alike otherwise."""
    first = halving.first_round()
    losses = {e.method: halving.best(e, results)[0] for e in first}
    rows = []
    for part, (usual, *others) in PARTS.items():
        for choice in others:
            found = _differences(losses, f"{part}={choice}", f"{part}={usual}")
            if found:
                median = f"{statistics.median(found):+.4f}"
                better = f"{sum(x < 0 for x in found)} of {len(found)}"
                rows.append([part, choice, usual, median, better])
    headings = "part", "choice", "instead of", "median difference", "better in"
    return lines(headings, rows)


def _differences(losses, choice, usual):
    """Losses of chains with a choice, minus those of the same with the usual one."""
    pairs = [
        (loss, losses.get(name.replace(choice, usual)))
        for name, loss in losses.items()
        if f"{choice}:" in f"{name}:"
    ]
    return [
        ours - theirs
        for ours, theirs in pairs
        if theirs is not None and math.isfinite(ours) and math.isfinite(theirs)
    ]


def _number(loss):
    return f"{loss:.4f}" if math.isfinite(loss) else "failed"
