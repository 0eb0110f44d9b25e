"""What the search for a chain found: its last round, and what each part is worth."""

import math
import statistics

from examples.bench import halving
from examples.bench.chains import PARTS
from examples.bench.markdown import lines
from examples.bench.search import Results, expected


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
        [f"`{name}`", *(_number(losses[task]) for task in tasks)]
        for name, losses in found.items()
    ]
    return lines(("chain", *(f"loss on `{task}`" for task in tasks)), rows)


def _parts(results):
    """Median and smallest loss of the first round's chains, by each choice."""
    first = halving.first_round()
    losses = {f"{e.method}:": halving.best(e, results)[0] for e in first}
    rows = []
    for part, choices in PARTS.items():
        for choice in choices:
            have = [x for name, x in losses.items() if f":{part}={choice}:" in name]
            numbers = map(_number, (statistics.median(have), min(have)))
            rows.append([part, choice, str(len(have)), *numbers])
    return lines(("part", "choice", "chains", "median loss", "smallest loss"), rows)


def _number(loss):
    return f"{loss:.4f}" if math.isfinite(loss) else "failed"
