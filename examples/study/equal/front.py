"""What the first pages show: a picture of two curves, what to expect, five choices.

The numbers of the README and of the home page are computed here, from the committed
runs.
"""

import pathlib
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from examples.study.bench import comparison, results, search, statistics, times
from examples.study.bench.markdown import lines
from examples.study.bench.tasks import TASKS
from examples.study.equal.plot import fingerprint, is_of
from examples.study.equal.protocol import LENGTHS, Entry, Results
from examples.study.equal.statistics import Row, row, speedup
from examples.study.equal.table import PATH, REFERENCE, read
from examples.study.transfer import table as transfer
from optax_matrix.diagnostics import method_style

METHOD, TASK = "muoneq", "books"
FILE = PATH.with_name("front.png")
CHOICES = {  # What a reader wants, and the methods to use for it.
    "a good default": ("muoneq",),
    "the best-known method": ("muon",),
    "the lowest loss, with memory to spare": ("soap", "mousse"),
    "almost no optimizer state": ("swan", "racs"),
}
_SIZE = (6.4, 3.6)  # Inches; at a width of 350 pixels the text is 10 pixels high.


def pair(task: str, length: int, found: Results) -> tuple[Row, Row]:
    """The rows of the method and of AdamW.

    Raises:
        ValueError: If one of them is not finished.
    """
    ours, adamw = (row(Entry(task, x, length), found) for x in (METHOD, REFERENCE))
    if ours is None or adamw is None:
        raise ValueError(f"{METHOD} and {REFERENCE} must be finished on {task}")
    return ours, adamw


def picture(found: Results, path: pathlib.Path = FILE) -> None:
    """Draws both curves, and the steps after which the method is where AdamW ends."""
    rows = pair(TASK, 1, found)
    ours, adamw = rows
    gain, _, _ = speedup(*rows)
    end, last = adamw.curves.mean(0)[-1], adamw.steps[-1]
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    for one, label in ((adamw, "AdamW, tuned"), (ours, METHOD)):
        style = method_style(one.entry.method)
        curve = one.curves.mean(0)
        axes.plot(one.steps, curve, label=label, **style | {"linewidth": 3})
    axes.plot([last / gain, last], [end, end], color="0.45", linestyle="--")
    text = f"{last / gain:.0f} of {last:.0f} steps"
    axes.annotate(
        text, (last / gain, end), (last / gain, end + 0.45), fontsize=14, ha="center",
        arrowprops={"arrowstyle": "->", "color": "0.45"},
    )  # fmt: skip
    late = np.concatenate([one.curves.mean(0)[len(one.steps) // 8 :] for one in rows])
    axes.set_ylim(late.min() - 0.08, late.max())
    axes.set_xlim(0, last)
    axes.set_xlabel("step", fontsize=14)
    axes.set_ylabel("test loss", fontsize=14)
    axes.tick_params(labelsize=13)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=14, loc="upper right")
    figure.savefig(path, dpi=160, metadata={"runs": fingerprint(rows)})


def is_current(found: Results) -> bool:
    """Whether the file shows the rows that are finished now."""
    return is_of(FILE, pair(TASK, 1, found))


def caption(found: Results) -> str:
    """What the picture shows, with its numbers."""
    short, low, high = speedup(*pair(TASK, 1, found))
    longest = LENGTHS[TASK][-1]
    long, *ends = speedup(*pair(TASK, longest, found))
    steps = TASKS[TASK].steps
    return (
        f"A tiny LLaMA (0.25M parameters) trained on two books. The curves are means "
        f"over five seeds. Both optimizers were tuned with equal budgets. In runs of "
        f"{steps} steps, AdamW needs {short:.2f} times as many steps as `{METHOD}` "
        f"to reach the same loss (95% interval {low:.2f} to {high:.2f}). In runs of "
        f"{steps * longest:,} steps, it needs {long:.2f} times as many "
        f"({ends[0]:.2f} to {ends[1]:.2f})."
    )


def expect(found: Results) -> str:
    """What a reader can expect of the method, as a list."""
    gains = {
        (task, length): speedup(*pair(task, length, found))[0]
        for task, lengths in LENGTHS.items()
        for length in lengths
    }
    first, *_, last = (gains[TASK, length] for length in LENGTHS[TASK])
    time = times.read()[TASK, METHOD].relative
    large, in_time = _larger()
    steps, longest = TASKS[TASK].steps, LENGTHS[TASK][-1]
    return "\n".join(
        [
            f"- **Under 1M parameters** (two language models and a vision "
            f"transformer): a tuned AdamW needs {min(gains.values()):.2f} to "
            f"{max(gains.values()):.2f} times as many steps as `{METHOD}`.",
            f"- **Longer runs gain less.** For the model in the picture, the factor "
            f"falls from {first:.2f} in runs of {steps} steps to {last:.2f} in runs of "
            f"{steps * longest:,}.",
            f"- **Time.** There, each step on a CPU takes {time:.2f} times as long as "
            f"with AdamW, so the speedup in time falls from {first / time:.2f} to "
            f"{last / time:.2f}. Below 1, AdamW is faster.",
            f"- **10M parameters** (one H200, two seeds): AdamW needs {large} times as "
            f"many steps and {in_time} times as much time.",
            "- **Larger models and TPUs:** we have not measured them.",
            "- **Little or no gain:** models that memorize their data, and models "
            "whose parameters are mostly embeddings.",
        ]
    )


def _larger() -> tuple[str, str]:
    """The method's speedups in steps and in time with ten million parameters."""
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in transfer.report(transfer.read()).splitlines()
    ]
    headings = table[0]
    (cells,) = (line for line in table if line[0] == f"`{METHOD}`")
    found = dict(zip(headings, cells, strict=True))
    if found["seeds"] != "2":
        raise ValueError(f"the text says two seeds, the rows have {found['seeds']}")
    return found["speedup"], found["speedup in time"]


CHOICE_HEADINGS = "you want", "use", "state (AdamW = 1)", "step time (AdamW = 1)"


def choices() -> list[tuple[str, tuple[str, ...], str, str]]:
    """What is wanted, the methods, and their costs on *books* relative to AdamW."""
    taken, measured = results.read(), times.read()
    of = lambda name: _of_first_study(name, taken)
    base = of(REFERENCE).state_bytes
    found = []
    for wanted, methods in CHOICES.items():
        state = [of(name).state_bytes / base for name in methods]
        time = [measured[TASK, name].relative for name in methods]
        found.append((wanted, methods, _range(state), _range(time)))
    return found


def _of_first_study(name: str, taken: search.Results) -> statistics.Row:
    """A row of *books* in any setting: the state has the same bytes in all of them."""
    for one in comparison.all_methods(TASK):
        if one.method == name and (made := statistics.row(one, taken)):
            return made
    raise ValueError(f"{name} has no finished row on {TASK}")


def _range(numbers: list[float]) -> str:
    ends = {f"{min(numbers):.1f}": None, f"{max(numbers):.1f}": None}
    return " to ".join(ends)


def choice(found: Results) -> str:
    """The table of choices, with links to the pages that list all methods."""
    del found
    cells = [
        [wanted, " or ".join(f"`om.{name}`" for name in methods), *costs]
        for wanted, methods, *costs in choices()
    ]
    every = "[all methods](.docs/methods.md)"
    return lines(CHOICE_HEADINGS, [*cells, ["something else", every, "", ""]])


def refresh(found: Results) -> None:
    """Draws the picture if it does not show its runs."""
    if not is_current(found):
        picture(found)


def _report(make: Callable[[Results], str]) -> Callable[[object], str]:
    return lambda _: make(read())


REPORTS = {
    "front_caption": _report(caption),
    "front_expect": _report(expect),
    "front_choice": _report(choice),
}
