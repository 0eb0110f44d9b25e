"""Validation and test sets: of the part of a task's data that nobody trains on."""

import functools
from typing import Any

from examples.study.bench.tasks import TEXTS, held_out_images, parts_of

BLOCKS = 32  # Of a held-out text, in turn validation and test.
WINDOWS = {"books": 3200, "shakespeare": 1728}
IMAGES = {"validation": 0, "test": 2}  # The first one; every fourth is taken.
PART = 32


@functools.cache
def held_out(task: str, which: str) -> Any:
    """The ``validation`` or ``test`` set of a task, in equal parts.

    Neighbouring windows of a text are alike, so the sets take turns in blocks of them.
    """
    if task not in TEXTS:
        return held_out_images(IMAGES[which])
    rows = TEXTS[task]().windows(WINDOWS[task])
    blocks = rows.reshape(BLOCKS, -1, rows.shape[-1])
    chosen = blocks[1::2] if which == "test" else blocks[::2]
    return parts_of(chosen.reshape(-1, rows.shape[-1]), PART)
