"""One run. Killed and resumed at any point, it ends with the same bits."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib

import numpy as np

from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.config import ModelConfig
from examples.pretrain.errors import UserError
from examples.pretrain.metrics import Metrics
from examples.pretrain.optimizers import find
from examples.pretrain.progress import Bar, display
from examples.pretrain.step import Trainer, evaluate
from examples.pretrain.windows import Data


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of a run.

    Attributes:
        model: The model.
        optimizer: A name in `optimizers.OPTIMIZERS`, with options.
        learning_rate: Peak of the schedule.
        steps: Updates of the weights.
        batch: Windows per update.
        accumulate: Micro-batches per update.
        data: Value of `--data`.
        tokenizer: Value of `--tokenizer`.
        seed: Seed of the weights and of the order of the data.
        eval_every: Number of updates between two evaluations.
    """

    model: ModelConfig
    optimizer: str
    learning_rate: float
    steps: int
    batch: int
    accumulate: int
    data: str
    tokenizer: str | None
    seed: int
    eval_every: int

    @property
    def tokens(self) -> int:
        return self.batch * self.model.context


@dataclasses.dataclass(frozen=True)
class Bookkeeping:
    """Where a run writes, and how often; the outcome does not depend on it.

    Attributes:
        out: Directory of the run.
        resume: Whether to continue the run in `out`.
        checkpoint_every: Number of updates between two checkpoints.
        log_every: Number of updates between two lines of metrics.
    """

    out: pathlib.Path
    resume: bool = False
    checkpoint_every: int = 100
    log_every: int = 10


def claim(
    directory: pathlib.Path,
    settings: dict,
    *,
    resume: bool,
    hint: str = "continue the run in it with --resume, or choose another --out",
) -> None:
    """Reserves a directory for this run.

    Args:
        directory: Where the run will write.
        settings: Everything that decides its outcome.
        resume: Whether to continue the run in the directory.
        hint: End of the error message if the directory is not empty.

    Raises:
        UserError: If the directory holds another run, or none to resume, or cannot be
            made.
    """
    record = directory / "run.json"
    settings = json.loads(json.dumps(settings))
    if resume:
        if not record.exists():
            raise UserError(f"There is no run in {directory}; start without --resume.")
        _check_same(json.loads(record.read_text()), settings, directory)
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not empty; {hint}.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / "run.json.part"
        part.write_text(json.dumps(settings, indent=2) + "\n")
        os.replace(part, record)
    except OSError as error:
        message = f"Cannot write to {directory} ({error}); choose another --out."
        raise UserError(message) from None


def _check_same(old, new, directory):
    flat = lambda tree: dict(tree | tree.get("model", {}), model=None)
    old, new = flat(old), flat(new)
    for key in new:
        if old.get(key) != new[key]:
            raise UserError(
                f"{directory} holds another run: its {key} is {old.get(key)!r}, not "
                f"{new[key]!r}; repeat its settings or choose another --out."
            )


def train(run: Run, data: Data, books: Bookkeeping) -> float:
    """Trains to the end of the schedule.

    Args:
        run: The run.
        data: Its batches.
        books: Where to write, and how often.

    Returns:
        The final validation loss.
    """
    trainer = Trainer(run.model, find(run.optimizer), run.steps, run.accumulate)
    claim(books.out, dataclasses.asdict(run), resume=books.resume)
    batches = iter(data.train)
    start, state = 0, trainer.init(run.seed)
    with contextlib.closing(Checkpoints(books.out / "checkpoints")) as checkpoints:
        if books.resume and checkpoints.exist():
            start, state, position = checkpoints.restore(state)
            batches.set_state(position)
        metrics = Metrics(books.out / "metrics.jsonl", after=start)
        with contextlib.closing(metrics), display() as progress:
            bar = Bar(progress, run.optimizer, run.steps, start, run.tokens)
            for step in range(start + 1, run.steps + 1):
                state, loss = trainer.update(
                    state, next(batches), np.float32(run.learning_rate)
                )
                if _due(step, run, run.eval_every, books.log_every):
                    metrics.write(**_measure(run, step, state, loss, data, bar))
                if _due(step, run, books.checkpoint_every):
                    checkpoints.save(step, state, batches.get_state())
    return evaluate(run.model, state.params, data.validation)


def _due(step, run, *periods):
    return step == run.steps or any(step % period == 0 for period in periods)


def _measure(run, step, state, loss, data, bar):
    """One line of metrics; stops a run that diverged."""
    loss = float(loss)
    if not math.isfinite(loss):
        raise UserError(
            f"The loss is {loss} at step {step}; choose a smaller --learning-rate."
        )
    row = {"step": step, "loss": loss, "tokens": step * run.tokens}
    row["tokens_per_second"] = bar.show(step, loss)
    if _due(step, run, run.eval_every):
        held_out = data.validation
        row["validation_loss"] = evaluate(run.model, state.params, held_out)
    return row
