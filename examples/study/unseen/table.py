"""Tables in Markdown."""

import math
import pathlib

from examples.study.bench import results, statistics
from examples.study.bench.markdown import lines
from examples.study.bench.missing import MissingError
from examples.study.unseen import protocol
from examples.study.unseen.protocol import (
    CHOOSING,
    CONFIRMING,
    FIRST,
    LAST,
    REFERENCE,
    RULES,
    Config,
    Results,
)

PATH = pathlib.Path(__file__).parents[1] / "results" / "unseen.jsonl"
LATER = "The runs are not finished yet."


def read(path: pathlib.Path = PATH) -> Results:
    """The runs of a file."""
    return results.read(path, Config)


def rules(found: Results) -> str:
    """Every rule: its score where it was chosen, and where it is confirmed."""
    try:
        chosen = protocol.chosen(found)
        cells = [_rule(rule, rule == chosen, found) for rule in RULES]
    except MissingError:
        return LATER
    headings = "rule", "chosen on", "other seeds", "other tasks", "worst task"
    return lines(headings, cells)


def _rule(rule, is_chosen, found):
    parts = (CHOOSING, FIRST), (CHOOSING, LAST), (CONFIRMING, LAST)
    means = [protocol.score(rule, *part, found) for part in parts]
    each = {
        t: protocol.scores(rule, t, LAST, found).mean()
        for t in (*CHOOSING, *CONFIRMING)
    }
    worst = max(each, key=each.__getitem__)
    name = f"**{rule}**" if is_chosen else rule
    return [name, *map(_percent, means), f"{worst}, {_percent(each[worst])}"]


def tasks(found: Results) -> str:
    """Every task: AdamW's loss, and the difference of each form, with intervals."""
    cells = []
    for task in (*CHOOSING, *CONFIRMING):
        try:
            cells.append(_task(task, found))
        except MissingError:
            continue
    if not cells:
        return LATER
    forms = [form for form in protocol.FORMS if form != REFERENCE]
    return lines(("task", "rate of AdamW", "its loss", *forms), cells)


def _task(task, found):
    rate = protocol.adamw(task, found)
    seeds = protocol.seeds_of(task)
    losses = {
        form: protocol.losses(task, form, rate, seeds, found) for form in protocol.FORMS
    }
    adamw = losses.pop(REFERENCE)
    cells = [task, f"{rate:g}", f"{adamw.mean():.4f} ± {adamw.std(ddof=1):.4f}"]
    return cells + [_difference(ours - adamw) for ours in losses.values()]


def _difference(parts):
    mean, half = statistics.paired(parts)
    return f"{mean:+.4f} ± {half:.4f}" if math.isfinite(mean) else "failed"


def _percent(score):
    """A difference of logarithms as a change of the loss."""
    return f"{100 * math.expm1(score):+.1f}%" if math.isfinite(score) else "failed"


_TABLES = {"unseen_rules": rules, "unseen_tasks": tasks}
REPORTS = {name: lambda _, made=made: made(read()) for name, made in _TABLES.items()}
