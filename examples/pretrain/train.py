"""One run. Killed and resumed at any point, it ends with the same bits."""

import contextlib
import dataclasses
import json
import math
import pathlib
import sys
import time
import warnings

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
)

from examples.pretrain.bars import named_times
from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.config import ModelConfig
from examples.pretrain.data import Data
from examples.pretrain.directory import (
    TABLE,
    Metrics,
    check_same,
    claimed,
    recorded,
    where,
    write_whole,
)
from examples.pretrain.errors import Interrupted, UserError, deferred
from examples.pretrain.monitor import (
    MEASURES,
    Monitor,
    with_monitor,
    without_monitor,
)
from examples.pretrain.optimizers import find
from examples.pretrain.step import Trainer, evaluate, state_bytes


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
        validation: Windows of an evaluation.
        checksum: Checksum of the data.
        version: That of the file of a user's optimizer; None for those of the library.
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
    validation: int
    checksum: str
    version: str | None = None

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
        is_monitored: Whether to record what each layer does.
    """

    out: pathlib.Path
    resume: bool = False
    checkpoint_every: int = 100
    log_every: int = 10
    is_monitored: bool = False


def train(run: Run, data: Data, books: Bookkeeping) -> float:
    """Trains to the end of the schedule.

    Args:
        run: The run.
        data: Its batches.
        books: Where to write, and how often.

    Returns:
        The final validation loss.

    Raises:
        UserError: If the run diverges, the directory is taken, or the disk fails.
        Interrupted: On Ctrl-C or SIGTERM, after a checkpoint of the last step.
    """
    measures = MEASURES if books.is_monitored else ()
    method, table = find(run.optimizer), None
    if books.resume:
        if (old := recorded(books.out)) is not None:
            check_same(old, dataclasses.asdict(run), books.out)
        table = recorded(books.out, TABLE, "delete it to read the model again")
    with warnings.catch_warnings(record=True) as caught:
        trainer = Trainer(run.model, method, run.steps, run.accumulate, measures, table)
    for warning in caught:
        print(warning.message, file=sys.stderr)
    with claimed(books.out, dataclasses.asdict(run), resume=books.resume):
        write_whole(books.out / TABLE, json.dumps(trainer.table, indent=1) + "\n")
        return _train(run, trainer, data, books)


def _train(run, trainer, data, books):
    batches = iter(data.train)
    start, state = 0, trainer.init(run.seed)
    with contextlib.closing(Checkpoints(books.out / "checkpoints")) as checkpoints:
        if books.resume and checkpoints.exist():
            plain = without_monitor(state)
            start, plain, position = checkpoints.restore(plain)
            state = with_monitor(state, plain)
            batches.set_state(position)
        elif books.resume:
            message = f"There is no checkpoint in {books.out}; the run starts over."
            print(message, file=sys.stderr)
        metrics = Metrics(books.out / "metrics.jsonl", after=start)
        _record_start(books.out, start, state)
        with (
            contextlib.closing(metrics),
            _monitor(run, books, start) as monitor,
            display() as progress,
            deferred() as signals,
        ):
            bar = Bar(progress, run.optimizer, run.steps, start, run.tokens)
            for step in range(start + 1, run.steps + 1):
                state, loss = trainer.update(
                    state, next(batches), np.float32(run.learning_rate)
                )
                if _due(step, run, run.eval_every, books.log_every):
                    row = _measure(run, step, state, loss, data, bar)
                    metrics.write(**row)
                    _check(row)
                if monitor is not None:
                    monitor.write(step, state)
                stop = bool(signals)  # Read once: a later signal gets its own step.
                if stop or _due(step, run, books.checkpoint_every):
                    plain = without_monitor(state)
                    checkpoints.save(step, plain, batches.get_state())
                if stop and step < run.steps:
                    raise Interrupted(signals[0], f" at step {step}")
    return evaluate(run.model, state.params, data.validation)


def _due(step, run, *periods):
    return step == run.steps or any(step % period == 0 for period in periods)


def _measure(run, step, state, loss, data, bar):
    """One line of metrics; the loss is null if the run diverged."""
    loss = float(loss)
    if not math.isfinite(loss):
        return {"step": step, "loss": None}
    row = {"step": step, "loss": loss, "tokens": step * run.tokens}
    row["tokens_per_second"] = bar.show(step, loss)
    if _due(step, run, run.eval_every):
        held_out = data.validation
        row["validation_loss"] = evaluate(run.model, state.params, held_out)
    return row


def _check(row):
    if row["loss"] is None:
        raise UserError(
            f"The loss is not finite at step {row['step']}; choose a smaller "
            "--learning-rate."
        )


def _record_start(directory, start, state):
    """Adds versions, machine and size of the state to a file of all starts."""
    size = state_bytes(without_monitor(state).opt_state)
    with contextlib.closing(Metrics(directory / "starts.jsonl", after=start)) as starts:
        starts.write(step=start, **where(), state_bytes=size)


def _monitor(run, books, start):
    """The monitor as a context; None in it if there is none."""
    if not books.is_monitored:
        return contextlib.nullcontext()
    monitor = Monitor(books.out, start, books.log_every, run.steps)
    return contextlib.closing(monitor)


class Bar:
    """A progress bar over the steps of one run.

    Args:
        progress: The rich display.
        name: Label in front of the bar.
        steps: Length of the run.
        done: Steps that were done before.
        tokens: Tokens per step.
    """

    def __init__(self, progress, name: str, steps: int, done: int, tokens: int):
        self._progress, self._tokens, self._done = progress, tokens, done
        self._task = progress.add_task(
            name, total=steps, completed=done, loss="-", speed="-"
        )
        self._since, self._from = time.perf_counter(), done

    def show(self, step: int, loss: float) -> float:
        """Moves the bar to a step.

        Returns:
            Tokens per second since the last call.
        """
        now = time.perf_counter()
        speed = self._tokens * (step - self._from) / max(now - self._since, 1e-9)
        self._since, self._from = now, step
        self._progress.update(
            self._task, completed=step, loss=f"{loss:.3f}", speed=f"{speed:,.0f}"
        )
        return speed


@contextlib.contextmanager
def display(console: Console | None = None):
    """A rich display for bars; finished bars stay on the screen."""
    columns = (
        TextColumn("{task.description:<17}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[speed]} tok/s"),
        *named_times(),
    )
    with Progress(*columns, console=console) as progress:
        yield progress
