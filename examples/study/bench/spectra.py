"""Singular values of one matrix under every method: what its updates look like.

Each method trains the tiny LLaMA of *books* once, at the learning rate that the study
found best for it. Nothing decays, so that an update is the method's alone.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from examples.pretrain.config import SIZES
from examples.pretrain.directory import where, write_whole
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import NAMES, Arena
from examples.study.bench import results
from examples.study.bench.comparison import OPTIONS, all_methods, entry
from examples.study.bench.config import Config
from examples.study.bench.methods import find
from examples.study.bench.runs import optimizer
from examples.study.bench.search import SEEDS, Results
from examples.study.bench.statistics import REFERENCE, ranked
from examples.study.bench.tasks import TASKS, Task
from optax_matrix.diagnostics import singular_values

PATH = results.PATH.with_name("spectra.jsonl")
COMMAND = "python -m examples.study bench spectra"
TASK = "books"
KERNEL = ("layers", SIZES["tiny"].layers - 1, "mlp", "down", "kernel")
METHODS = REFERENCE, *NAMES


@dataclasses.dataclass(frozen=True)
class Spectra:
    """Singular values of what a kernel had in one run, in descending order.

    Attributes:
        gradient: Of its last gradient, divided by the largest one.
        update: Of the update that the method made from it, divided by the largest one.
        change: Of all updates together, divided by the largest one.
        first: Of the weights before training.
        last: Of the weights after training.
    """

    gradient: list[float]
    update: list[float]
    change: list[float]
    first: list[float]
    last: list[float]


class Row(NamedTuple):
    """A line of the file: a run, its singular values, and where it was made."""

    config: Config
    spectra: Spectra
    where: dict[str, str]


def read(path: pathlib.Path = PATH) -> dict[str, Row]:
    """The rows of a file by method, without options.

    Raises:
        UserError: If a line is damaged.
    """

    def row(given):
        spectra = Spectra(**given["spectra"])
        return Row(Config(**given["config"]), spectra, given["where"])

    found = results.parsed(path, row, "its method will be measured again")
    return {plain(one.config.method): one for one in found}


def plain(method: str) -> str:
    """A method without its options."""
    return method.partition(":")[0]


def configs(found: Results) -> dict[str, Config]:
    """The run of each method: the one that the study would do with its first seed.

    It has the better one of the two settings. A method without finished runs has the
    rate at which its search would begin.
    """
    runs: dict[str, Config] = {}
    for row in ranked(all_methods(TASK), found):
        config = row.entry.config(row.rate, SEEDS[0])
        runs.setdefault(plain(config.method), config)
    for name in METHODS:
        if name not in runs:
            one = entry(TASK, OPTIONS.get(name, name))
            runs[name] = one.config(one.rate, SEEDS[0])
    return {name: runs[name] for name in METHODS}


def run(path: pathlib.Path, found: Results) -> None:
    """Measures every method that the file lacks, or has with another configuration."""
    rows = read(path)
    for name, config in configs(found).items():
        if name in rows and rows[name].config == config:
            continue
        jax.clear_caches()  # Of the method before.
        origin = {"command": COMMAND} | where() | results.commit()
        rows[name] = Row(config, measure(config), origin)
        kept = [rows[name] for name in METHODS if name in rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(json.dumps(_as_json(r)) + "\n" for r in kept))
        print(f"{name}: learning rate {config.rate:.2g}", flush=True)


def _as_json(row: Row) -> dict[str, Any]:
    config, spectra = dataclasses.asdict(row.config), dataclasses.asdict(row.spectra)
    return {"config": config, "spectra": spectra, "where": row.where}


def measure(config: Config) -> Spectra:
    """Trains once, without weight decay."""
    task = TASKS[config.task]
    return spectra(task, undecayed(config, task.arena), config, KERNEL)


def undecayed(config: Config, arena: Arena) -> Any:
    """The method of a run without its weight decay."""
    if config.setting == "own":
        return find(config.method, "own", arena).replace(weight_decay=0.0)
    arena = dataclasses.replace(arena, weight_decay=0.0)
    return find(config.method, config.setting, arena)


def spectra(task: Task, build: Any, config: Config, kernel: Sequence) -> Spectra:
    """Trains under a method, and looks at one kernel.

    Args:
        task: Model and data.
        build: The method, a function of a schedule.
        config: Learning rate, seed, steps and batch.
        kernel: Keys of the kernel in the tree of weights.

    Raises:
        UserError: If the run diverged.
    """

    def at(tree: Any) -> jax.Array:
        for key in kernel:
            tree = tree[key]
        return tree[...]

    tx = optimizer(build, config.rate, config.steps)

    def step(carry, batch):
        params, state, _ = carry
        gradient = jax.grad(task.mean_loss)(params, batch)
        updates, state = tx.update(gradient, state, params)
        seen = at(gradient), at(updates)
        return (optax.apply_updates(params, updates), state, seen), None

    @jax.jit
    def trained(params, batches):
        carry = params, tx.init(params), (at(params), at(params))
        (params, _, seen), _ = jax.lax.scan(step, carry, batches)
        return at(params), *seen

    params = jax.jit(task.init)(config.seed)
    if start := getattr(build, "start", None):
        params = start(params, config.seed)
    batches = task.batches(config.seed, config.steps, config.batch)
    first, (last, gradient, update) = at(params), trained(params, batches)
    if not np.isfinite(last).all():
        raise UserError(
            f"{config.method} diverged at the learning rate {config.rate:.2g}; give it "
            "a smaller one in `spectra.configs`."
        )
    return Spectra(
        gradient=_relative(gradient),
        update=_relative(update),
        change=_relative(last - first),
        first=_values(first),
        last=_values(last),
    )


def _relative(matrix) -> list[float]:
    """Singular values divided by the largest one."""
    return _values(matrix / singular_values(matrix)[0])


def _values(matrix) -> list[float]:
    """Singular values to three digits, smaller ones than 1e-7 as zero."""
    values = np.asarray(singular_values(matrix), np.float64)
    return [float(f"{x:.3g}") if x >= 1e-7 else 0.0 for x in values]
