"""What a page shows, whichever program measured it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SHOWN = 10  # Methods with a colour, AdamW beside them.
# What columns of several kinds of pages say.
SPREAD = "spread", "Standard deviation of that loss over seeds."
DIFFERENCE = (
    "difference",
    "Loss minus that of AdamW, seed by seed: the mean, and half of its 95% confidence "
    "interval. An interval that holds 0 shows no difference.",
)
SPEEDUP = (
    "speedup",
    "Steps of AdamW over those of the method to the final loss of AdamW, on mean "
    "curves; 2 means half as many steps. A dash: that loss was not reached.",
)
STATE = "state", "Memory of the optimizer's state."


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        steps: Steps.
        values: Values at these steps.
        low: Smallest value over the seeds; None for one seed.
        high: Largest one.
    """

    steps: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclasses.dataclass(frozen=True)
class Method:
    """One row of the table, and a line in every chart.

    Attributes:
        name: Its name, unique in its section.
        loss: Validation loss; infinite if the run diverged.
        cells: The row of the table without the name.
        difference: Loss minus AdamW's, as in the table.
        speedup: AdamW's steps over the method's, as in the table.
        lines: Its line by the title of the chart.
    """

    name: str
    loss: float
    cells: Sequence[str]
    difference: str
    speedup: str
    lines: Mapping[str, Line]


@dataclasses.dataclass(frozen=True)
class Section:
    """One comparison, one study, or all single runs.

    Attributes:
        title: Its heading.
        source: The word that asked for it; single runs have none in common.
        settings: Names of settings to values, for each run.
        columns: Headings of the table, each with how to read it.
        methods: The rows, best first.
        reference: Name of AdamW's row; None without one.
        notes: Sentences below the table.
        monitors: Records of `monitor.jsonl`, by the name of the run.
    """

    title: str
    source: str
    settings: Mapping[str, Mapping[str, str]]
    columns: Sequence[tuple[str, str]]
    methods: Sequence[Method]
    reference: str | None
    notes: Sequence[str] = ()
    monitors: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    @property
    def places(self) -> dict[str, int]:
        """The place of each method that has a colour."""
        others = [m for m in self.methods if m.name != self.reference]
        finite = [m.name for m in others if math.isfinite(m.loss)]
        return {name: place for place, name in enumerate(finite[:SHOWN])}


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings of settings on one level, as text."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": x for name, x in flat(value).items()}
        elif isinstance(value, list | tuple):
            found[key] = ", ".join(map(str, value))
        else:
            found[key] = str(value)
    return found


def banded(steps: Sequence[float], middle: Any, losses: Any) -> Line:
    """A line in the band between the smallest and the largest loss over the seeds.

    Args:
        steps: Steps.
        middle: The line.
        losses: Losses of shape ``(seeds, steps)``.
    """
    losses = np.asarray(losses, float)
    if len(losses) < 2:
        return Line(steps, middle)
    return Line(steps, middle, losses.min(axis=0), losses.max(axis=0))
