"""Optimizers of users, which get the same budget as the methods of the comparison.

    python -m examples.study equal try my_module:make --tasks books

The function tries the 16 points of its axes beside the tuned AdamW of the other leaves,
then more rates while the best one lies at an end, and runs with the five seeds of the
rows. AdamW and all other methods have the committed runs.
"""

import functools
import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import optax

import optax_matrix as om
from examples.pretrain import user
from examples.study.bench import results
from examples.study.bench.config import Result
from examples.study.equal import space
from examples.study.equal.config import PATH, SEEDS, Config
from examples.study.equal.protocol import Entry, Results
from examples.study.equal.space import Search
from examples.study.equal.statistics import Row, row_of

KEYWORDS = {"b1": "b1", "b2": "b2", "decay": "weight_decay"}  # Of the axes.


def name_of(function: str) -> str:
    """The method of a function: its name, and the checksum of the file it is in.

    Raises:
        UserError: As `user.find`.
    """
    return f"{function} {user.checksum(function)}"


def function_of(method: str) -> str:
    """The function of a method, as it was given."""
    return method.rpartition(" ")[0]


def entry(task: str, function: str, middle: float | None = None) -> Entry:
    """The row of a function.

    Args:
        task: A name of `bench.tasks.TASKS`.
        function: As in ``my_module:make`` or ``my_module:make:b1=0.9``.
        middle: The middle of its learning rates; None for that of AdamW.

    Raises:
        UserError: If there is no such function, or it makes no optimizer from a rate.
    """
    user.find(function)
    set_already = {part.partition("=")[0] for part in function.split(":")[2:]}
    takes = inspect.signature(user.function_of(function)).parameters
    axes = [
        axis
        for axis, key in KEYWORDS.items()
        if key in takes and key not in set_already
    ]
    search = Search(space.ADAMW if middle is None else middle, tuple(axes))
    return Entry(task, name_of(function), own=search)


def build(
    method: str, lr: Any, betas: Any, decay: Any, other: Any, numbers: Any
) -> optax.GradientTransformation:
    """A function's optimizer, with the comparison's AdamW for all other leaves.

    A function with ``other=`` gets that AdamW. One without it trains the matrices only.
    """
    function = function_of(method)
    takes = inspect.signature(user.function_of(function)).parameters
    found = user.find(function, numbers).replace(**betas)
    if decay is not None:
        found = found.replace(weight_decay=decay)
    if "other" in takes:
        return found.replace(other=other)(lr)
    parts = {"matrix": found(lr), "other": other}
    return optax.partition(parts, om.matrices.label_params(numbers))


def read(path: pathlib.Path) -> dict[Config, Result]:
    """The committed runs, and those of a file of the user."""
    return _committed() | results.read(path, Config)


@functools.cache
def _committed():
    return results.read(PATH, Config)


def rows(task: str, found: Results) -> Iterator[Row]:
    """Rows of functions whose runs on a task are finished, each as it was last."""
    by_settings: dict[tuple, dict[int, Config]] = {}
    for config in found:
        is_row = config.task == task and config.seed in SEEDS
        if is_row and space.is_users(config.method):
            key = config.method, config.rate, config.warm_up, config.b1, config.b2
            by_settings.setdefault((*key, config.decay), {})[config.seed] = config
    last: dict[str, dict[int, Config]] = {}
    for (method, *_), configs in by_settings.items():
        if len(configs) == len(SEEDS):
            last[function_of(method)] = configs
    for configs in last.values():
        runs = {configs[seed]: found[configs[seed]] for seed in SEEDS}
        yield row_of(Entry(task, configs[SEEDS[0]].method), runs)
