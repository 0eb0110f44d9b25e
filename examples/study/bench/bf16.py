"""Weights in bfloat16 on *books*: three methods, two learning rates, five forms."""

import dataclasses
import functools
import math

import jax

from examples.study.bench import weights
from examples.study.bench.comparison import better
from examples.study.bench.markdown import lines
from examples.study.bench.search import SEEDS, Entry, Results
from examples.study.bench.statistics import REFERENCE, Row, difference, row
from examples.study.bench.tasks import TASKS

TASK = "books"
METHODS = REFERENCE, "muoneq", "soap"
FACTORS = 1, 1 / 8  # Of the best rate with float32 weights.
SHOWN = {
    "float32": "float32",
    "rounded": "bfloat16, rounded to nearest",
    "stochastic_rounding": "bfloat16, `stochastic_rounding`",
    "store_remainders": "bfloat16, `store_remainders`",
    "store_remainders:int8": 'bfloat16, `store_remainders(dtype="int8")`',
}


def entries(results: Results) -> list[Entry]:
    """Every method in its better setting on *books*, at its best rate there."""
    found = [better(TASK, method, results) for method in METHODS]
    return [
        dataclasses.replace(
            best.entry,
            rate=best.rate * factor,
            trials=(),
            seeds=SEEDS[:3],
            weights=form,
        )
        for best in found
        for form in weights.FORMS
        for factor in FACTORS
    ]


def report(results: Results) -> str:
    """A row for every method and form; losses against those of float32 weights."""
    found = [row(e, results) for e in entries(results)]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    finished = [(high, low) for high, low in pairs if high and low]
    exact = {
        high.entry.method: (high, low)
        for high, low in finished
        if high.entry.weights == "float32"
    }
    headings = (
        *("method", "weights", "at the best rate", "against float32"),
        *("at an eighth of it", "against float32", "bytes of weight + state"),
    )
    cells = [
        [
            f"`{high.entry.method}`, {high.rate:g}",
            SHOWN[high.entry.weights],
            *_losses(high, exact[high.entry.method][0]),
            *_losses(low, exact[high.entry.method][1]),
            _bytes(high),
        ]
        for high, low in finished
        if high.entry.method in exact
    ]
    text = lines(headings, cells)
    if left := len(pairs) - len(cells):
        text += f"\n\n{left} of {len(pairs)} rows do not have all of their runs yet."
    return text


def _losses(ours: Row, exact: Row) -> list[str]:
    if not math.isfinite(ours.loss):
        return ["failed", "-"]
    loss = f"{ours.loss:.4f} ± {ours.spread:.4f}"
    if ours is exact:
        return [loss, "-"]
    mean, half = difference(ours, exact)
    return [loss, f"{mean:+.4f} ± {half:.4f}"]


def _bytes(one: Row) -> str:
    """Bytes of the weights and of the state, each divided by the number of weights."""
    size, count = _size(one.entry.weights)
    return f"{size / count:.2f} + {one.state_bytes / count:.2f}"


@functools.cache
def _size(form: str) -> tuple[int, int]:
    """Bytes and number of the weights of *books* in a form."""
    shapes = jax.eval_shape(lambda: weights.kept(TASKS[TASK].init(0), form))
    leaves = jax.tree.leaves(shapes)
    return sum(x.size * x.dtype.itemsize for x in leaves), sum(x.size for x in leaves)
