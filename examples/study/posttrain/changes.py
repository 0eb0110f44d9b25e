"""The tasks of the study and what their models are tuned to."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from examples.pretrain.config import SIZES
from examples.pretrain.data import DATA, as_bytes, read_text
from examples.study.bench.tasks import TASKS, Task, Text, parts_of
from examples.study.equal import sets

WINDOWS, BLOCKS, PART = 1600, 32, 32


@dataclasses.dataclass(frozen=True)
class Change:
    """A model of the study, and other data for it.

    Attributes:
        title: What changes.
        length: Factor of the steps of the first training.
        batches: As of `bench.tasks.Task`, of the new data.
        held_out: Function from ``validation`` or ``test`` to a set of the new data.
        steps: Updates, many and few.
    """

    title: str
    length: int
    batches: Callable[[int, int, int], Any]
    held_out: Callable[[str], Any]
    steps: tuple[int, int]


@functools.cache
def _plays() -> Text:
    """Tiny Shakespeare as bytes, for the model of two books."""
    text = as_bytes(read_text(DATA / "tiny_shakespeare.txt.gz"))
    return Text([np.asarray(text)], SIZES["tiny"].context, WINDOWS)


@functools.cache
def _of_plays(which):
    """Neighbouring windows are alike, so the sets take turns in blocks of them."""
    rows = _plays().windows(WINDOWS)
    blocks = rows.reshape(BLOCKS, -1, rows.shape[-1])
    chosen = blocks[1::2] if which == "test" else blocks[::2]
    return parts_of(chosen.reshape(-1, rows.shape[-1]), PART)


def _turned(batch):
    """Images after a quarter turn."""
    return batch | {"pixels": np.rot90(batch["pixels"], axes=(-2, -1))}


CHANGES = {
    "books": Change(
        title="tiny LLaMA, from two books to Shakespeare's plays",
        length=4,
        batches=lambda *run: _plays().batches(*run),
        held_out=_of_plays,
        steps=(200, 50),
    ),
    "digits": Change(
        title="vision transformer, from digits to digits after a quarter turn",
        length=4,
        batches=lambda *run: _turned(TASKS["digits"].batches(*run)),
        held_out=lambda which: _turned(sets.held_out("digits", which)),
        steps=(200, 50),
    ),
}


def task_of(name: str) -> Task:
    """The task of the first training, with the new data."""
    return dataclasses.replace(TASKS[name], batches=CHANGES[name].batches)
