"""The table on the screen, and notes on how to read it."""

import math

from rich import box
from rich.console import Console
from rich.table import Table

from examples.pretrain.optimizers import OPTIMIZERS
from examples.study.compare.comparison import Comparison
from examples.study.compare.protocol import REFERENCE, Row

TITLE = "Same data and schedule for all"


HEADINGS = (
    "best\nrate",
    "rates x\nseeds",
    "valid.\nloss",
    "steps to\nAdamW's",
    "times\nfaster",
    "ms per\nstep",
    "state",
)


def table(rows: list[Row]) -> Table:
    """The comparison, best validation loss first."""
    view = Table(title=TITLE, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    view.add_column("optimizer", overflow="fold")
    for heading in HEADINGS:
        view.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        bold = "bold" if row.optimizer == REFERENCE else None
        view.add_row(*_cells(row), style=bold)
    return view


def _cells(row):
    reached, speedup = "not reached", "-"
    if row.reached is not None:
        reached, speedup = f"{row.reached:g}", f"{row.speedup:.2f}x"
    return (
        row.optimizer,
        f"{row.learning_rate:g}",
        f"{row.tried} x {row.seeds}",
        loss(row),
        reached,
        speedup,
        f"{row.milliseconds:.1f}",
        size(row.state_bytes),
    )


def loss(row: Row) -> str:
    """The loss and half of the spread over seeds."""
    if not math.isfinite(row.loss):
        return "diverged"
    if row.seeds == 1:
        return f"{row.loss:.4f}"
    low, high = row.spread
    return f"{row.loss:.4f} ±{(high - low) / 2:.4f}"


def size(count: float) -> str:
    """A number of bytes with a unit, such as 1.9 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def notes(plan: Comparison, rows: list[Row]) -> list[str]:
    """How the numbers were measured; printed below the table."""
    adamw = next(row for row in rows if row.optimizer == REFERENCE)
    rates = ", ".join(f"{rate:g}" for rate in plan.learning_rates)
    seeds = f"{plan.seeds} seed" + "s" * (plan.seeds > 1)
    return [
        f"Every run: {plan.steps} steps of {plan.batch} x {plan.model.context} tokens "
        f"({plan.steps * plan.tokens / 1e6:.2f}M in all), {seeds}, warm-up over 10%, "
        f"cosine to 10%, global norm clipped at 1; embeddings, head and norms by the "
        f"same AdamW throughout.",
        _about_rates(plan, adamw, rates),
        f"Steps to AdamW's loss: the first evaluated step (one in {plan.eval_every}) "
        f"with a validation loss at or below AdamW's final one"
        + (", median over seeds." if plan.seeds > 1 else ".")
        + " AdamW itself may reach it before its last step. Nothing is extrapolated.",
        "ms per step: median without compilation, on this machine at this size; the "
        "smaller the model and batch, the larger the optimizer's share.",
        *_about_starts(rows),
        *_about_options(rows),
        "A short run favours some methods and hurts others (ARO, for one, starts "
        "behind AdamW), and one seed is no error bar: read it as a demonstration, not "
        "as a ranking.",
    ]


def _about_starts(rows):
    """Says which methods start from weights of their own."""
    method = lambda row: OPTIMIZERS.get(row.optimizer.split(":")[0])
    own = [row.optimizer for row in rows if hasattr(method(row), "start")]
    if not own:
        return ["All start from the same weights."]
    return [
        f"All start from the same weights, except {', '.join(own)}: these start from "
        "matrices of their own (unless init=given) and keep their singular values; "
        "their learning rate follows from AdamW's by the paper's rule."
    ]


def _about_options(rows):
    if not any(":" in row.optimizer for row in rows):
        return []
    return [
        "Options in a name may leave this protocol: some change the size of updates "
        "(aro:base=adam) or which leaves AdamW trains (galore:last_layer=method)."
    ]


def _about_rates(plan, adamw, rates):
    best, tried = adamw.learning_rate, plan.learning_rates
    if len(plan.own_rates) == len(plan.optimizers):
        return "Learning rates: those given with the names."
    if plan.sweep == "all":
        return f"Learning rates: every method was run at {rates}; its best is shown."
    line = f"Learning rates: AdamW was run at {rates}; the others at AdamW's best, "
    line += f"{best:g}, only (updates matched to AdamW's root mean square, 0.2)."
    if plan.own_rates:
        line += f" With rates of their own: {', '.join(plan.own_rates)}."
    if len(tried) > 1 and best in (min(tried), max(tried)):
        line += " The best is at the edge of the sweep: widen --learning-rates."
    return line


def show(plan: Comparison, rows: list[Row], console: Console) -> None:
    """Prints the table and the notes."""
    console.print()
    console.print(table(rows))
    for line in notes(plan, rows):
        console.print(f"- {line}", highlight=False)
