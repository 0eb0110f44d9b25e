"""AdamW, Muon and MuonEq on a tiny LLaMA, each at the rates that `om.sweep` finds.

    make demo

It trains on two books, 50 steps a run. The curves are drawn in the terminal and, with a
table, in `runs/demo/report.html`. AdamW's rate is searched first; embeddings, head and
norms keep it under the other methods.
"""

import argparse
import dataclasses
import itertools
import math
import pathlib

import jax
import numpy as np
import optax
from flax import nnx
from rich import progress
from rich.console import Console

import optax_matrix as om
from examples.pretrain.cli import at_least
from examples.pretrain.config import SIZES
from examples.pretrain.data import Windows, open_data
from examples.pretrain.model import Llama
from examples.pretrain.step import CLIP, cross_entropy, learning_rate, matrices
from examples.study.report import page
from examples.study.report.section import Line, Method, Section

STEPS, BATCH, VALIDATION = 50, 16, 64
RATES = {
    "adamw": (2e-3, 4e-3, 8e-3),
    "muon": (0.02, 0.04, 0.08),
    "muoneq": (1, 2, 4),  # Times AdamW's best.
}
WIDEN = 2  # Most rates that a search adds.
POINTS, HEIGHT = 60, 14  # Of the picture in the terminal.
LOSS = "Training loss (nats per byte)"
COLUMNS = (
    ("rate", "The best of the learning rates that were tried."),
    (
        "tried",
        "Number of learning rates that were tried; 'at the end': the best is the "
        "smallest or the largest of them.",
    ),
    ("validation loss", "After the last step, in nats per byte; lower is better."),
    ("difference", "Validation loss minus AdamW's."),
    (
        "speedup",
        "AdamW's number of steps, divided by that after which the training loss, "
        "averaged as in the chart, reaches AdamW's last value. A dash: never.",
    ),
)
NOTES = (
    "Same weights, batches and schedule for all: warm-up over 10%, cosine to 10%, "
    "global norm clipped at 1, weight decay 0.1.",
    "`muon` is `om.muon` with its defaults, `muoneq` is `om.muoneq`.",
    "One seed and a short run: a demonstration, not a ranking.",
)


def search(steps: int, told) -> dict[str, om.tuning.Sweep]:
    """The searches of all methods, one after the other.

    Args:
        steps: Steps of every run.
        told: Gets the method, then what `om.sweep` tells of its progress.
    """
    size = SIZES["tiny"]
    data = open_data("books", Windows(size.context, BATCH, validation=VALIDATION))
    config = dataclasses.replace(size, vocab=data.vocab)
    batches = [batch[0] for batch in itertools.islice(data.train, steps)]
    model = Llama(config, rngs=nnx.Rngs(0))
    rule, peak = matrices(config), lambda rate: learning_rate(rate, steps)

    def evaluate(model):
        return jax.lax.map(lambda x: cross_entropy(model, x), data.validation).mean()

    def found(name, make, rates):
        return om.sweep(
            lambda rate: optax.chain(optax.clip_by_global_norm(CLIP), make(rate)),
            cross_entropy,
            model,
            batches,
            rates=rates,
            evaluate=evaluate,
            widen=WIDEN,
            memory=0,  # One after the other, so that a wider bracket compiles nothing.
            progress=lambda *x: told(name, *x),
        )

    adamw = found(
        "adamw",
        lambda rate: optax.adamw(peak(rate), b2=0.95, weight_decay=0.1),
        RATES["adamw"],
    )
    others = {
        "other_learning_rate": peak(adamw.best),
        "weight_decay": 0.1,
        "dimension_numbers": rule,
    }
    muon = found("muon", lambda rate: om.muon(peak(rate), **others), RATES["muon"])
    rates = [times * adamw.best for times in RATES["muoneq"]]
    muoneq = found("muoneq", lambda rate: om.muoneq(peak(rate), **others), rates)
    return {"adamw": adamw, "muon": muon, "muoneq": muoneq}


def averaged(losses: np.ndarray, points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Last steps of equal parts of a run, and the mean loss of each part."""
    ends = np.unique(np.linspace(0, len(losses), points + 1).round().astype(int))[1:]
    parts = np.split(losses, ends[:-1])
    return ends, np.array([part.mean() for part in parts])


def best_curves(found) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The averaged training losses of each method at its best rate."""
    best = {name: one.losses[one.best][0] for name, one in found.items()}
    return {n: averaged(x, min(POINTS, len(x) // 2)) for n, x in best.items()}


def picture(curves) -> str:
    """The curves in letters."""
    letters = {"adamw": "a", "muon": "m", "muoneq": "M"}
    every = np.concatenate([losses for _, losses in curves.values()])
    low, high = float(every.min()), float(every.max())
    rows = [[" "] * max(len(x) for x, _ in curves.values()) for _ in range(HEIGHT)]
    for name, (_, losses) in curves.items():
        place = (high - losses) / max(high - low, 1e-9) * (HEIGHT - 1)
        for column, row in enumerate(place.round().astype(int)):
            rows[row][column] = letters[name]
    values = np.linspace(high, low, HEIGHT)
    lines = [f"{v:6.2f} |{''.join(r)}" for v, r in zip(values, rows, strict=True)]
    steps = max(int(ends[-1]) for ends, _ in curves.values())
    lines.append(f"{'':6} +{'-' * len(rows[0])}")
    lines.append(f"{'':6}  0{f'step {steps}':>{len(rows[0]) - 1}}")
    lines.append("training loss; " + ", ".join(f"{v}: {n}" for n, v in letters.items()))
    return "\n".join(lines)


def speedup(curve, reference) -> float | None:
    """The reference's steps over those to its last value; None if not reached."""
    ends, losses = curve
    reached = np.flatnonzero(losses <= reference[1][-1])
    return float(reference[0][-1] / ends[reached[0]]) if len(reached) else None


def section(found, curves, out: pathlib.Path) -> Section:
    """What the page shows."""
    final = {name: float(one.finals[one.best].mean()) for name, one in found.items()}
    methods = []
    for name in sorted(final, key=final.get):
        one, faster = found[name], speedup(curves[name], curves["adamw"])
        is_other = name != "adamw"
        difference = f"{final[name] - final['adamw']:+.4f}" if is_other else "-"
        times = f"{faster:.2f}" if faster and is_other else "-"
        tried = f"{len(one.rates)}{', at the end' if one.at_end else ''}"
        cells = f"{one.best:g}", tried, f"{final[name]:.4f}"
        line = Line(*curves[name])
        methods.append(
            Method(
                name,
                final[name],
                (*cells, difference, times),
                difference,
                times,
                {LOSS: line},
            )
        )
    steps = str(len(found["adamw"].losses[found["adamw"].best][0]))
    settings = {"data": "books", "steps": steps, "batch": str(BATCH), "model": "tiny"}
    title = "AdamW, Muon and MuonEq on a tiny LLaMA"
    return Section(
        title, str(out), {out.name: settings}, COLUMNS, methods, "adamw", NOTES
    )


class Bars:
    """A live bar for each run, and one for the whole, with named columns."""

    def __init__(self, console: Console, steps: int):
        text, self._steps = progress.TextColumn, steps
        self.view = progress.Progress(
            *(text("{task.description:<15}"), progress.BarColumn()),
            *(text("step"), progress.MofNCompleteColumn()),
            *(text("{task.fields[loss]:<11}"), text("time")),
            *(
                progress.TimeElapsedColumn(),
                text("left"),
                progress.TimeRemainingColumn(),
            ),
            console=console,
        )
        self._tasks: dict[tuple[str, float], progress.TaskID] = {}
        self._planned = sum(map(len, RATES.values()))
        self._whole = self.view.add_task("whole demo", total=1, loss="")

    def show(self, name: str, rate: float, done: int, total: int, loss: float) -> None:
        """Moves the bar of a run, and that of the whole."""
        key = name, rate
        if key not in self._tasks:
            self._tasks[key] = self.view.add_task(
                f"{name} {rate:g}", total=total, loss="", start=False
            )
        if done:
            self.view.start_task(self._tasks[key])
            said = f"loss {loss:.3f}" if math.isfinite(loss) else "diverged"
            self.view.update(self._tasks[key], completed=done, loss=said)
        runs = [task for task in self.view.tasks if task.id != self._whole]
        every = max(self._planned, len(runs)) * self._steps
        self.view.update(
            self._whole, completed=sum(task.completed for task in runs), total=every
        )


def main(arguments: list[str] | None = None) -> None:
    """Trains, prints the picture and a table, and writes the page."""
    parser = argparse.ArgumentParser(
        "examples.demo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=at_least(4), default=STEPS)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    given = parser.parse_args(arguments)
    console = Console()
    bars = Bars(console, given.steps)
    with bars.view:
        found = search(given.steps, bars.show)
    curves = best_curves(found)
    print(f"\n{picture(curves)}\n")
    shown = section(found, curves, given.out)
    for method in shown.methods:
        rate, tried, loss, difference, times = method.cells
        print(
            f"{method.name:<7} at {rate:<6} (best of {tried})  validation loss {loss}  "
            f"minus adamw's {difference:<8} speedup {times}"
        )
    given.out.mkdir(parents=True, exist_ok=True)
    page.write([shown], given.out / "report.html")
    rate = found["adamw"].best
    print(f"curves and table: {given.out / 'report.html'}")
    print(
        f"now your model: om.sweep(lambda rate: om.muoneq(rate, other_learning_rate="
        f"{rate:g}),\n    loss, model, batches, rates=({rate:g}, {2 * rate:g}, "
        f"{4 * rate:g}))  # {rate:g}: your AdamW's rate"
    )


if __name__ == "__main__":
    main()
