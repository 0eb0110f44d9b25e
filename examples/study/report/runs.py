"""Single runs: what `python -m examples.pretrain` wrote, side by side."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from examples.pretrain.directory import read, recorded
from examples.pretrain.errors import UserError
from examples.study.compare.protocol import REFERENCE, Curve, at_best_learning_rate, row
from examples.study.report.comparisons import COLUMNS, line, method
from examples.study.report.section import Method, Section, flat

FREE = ("optimizer", "learning_rate", "seed")  # May differ in a fair comparison.
LOSS, TRAINING = "Validation loss (nats per token)", "Training loss (nats per token)"
OWN_COLUMNS = {
    "rates x seeds": "Runs with the same optimizer and learning rate are one row.",
    "speedup": "AdamW's steps divided by the first evaluated step at or below AdamW's "
    "final loss with the same seed. A dash: that loss was not reached, AdamW has no "
    "run with that seed, or a run is not finished.",
    "difference": "Loss minus AdamW's, of finished runs; negative is better.",
    "loss": "The last validation loss, median over seeds; lower is better.",
    "ms": "Milliseconds per step: tokens of a step over the median of the recorded "
    "tokens per second, which include reading data and evaluations.",
}
DONE = ("steps", "Steps done, of all; a run can have stopped or diverged.")


class _Run:
    """Files of one directory."""

    def __init__(self, directory: pathlib.Path):
        self.directory, self.name = directory, str(directory)
        self.settings: dict[str, Any] = recorded(directory) or {}
        self.rows = read(directory / "metrics.jsonl")
        self.starts = read(directory / "starts.jsonl")
        self.monitor = read(directory / "monitor.jsonl")
        held_out = [r for r in self.rows if r.get("validation_loss") is not None]
        self.has_diverged = bool(self.rows) and self.rows[-1].get("loss") is None
        if not held_out and not self.has_diverged:
            raise UserError(
                f"The run in {directory} has no validation loss yet; continue it with "
                "python -m examples.pretrain --resume."
            )
        lost = [(self.rows[-1]["step"], math.nan)] if self.has_diverged else []
        pairs = [(r["step"], r["validation_loss"]) for r in held_out] + lost
        try:
            self.curve = self._curve(*zip(*pairs, strict=True))
        except KeyError as error:
            raise UserError(
                f"{directory}/run.json lacks {error}; it is not that of a run."
            ) from None

    def _curve(self, steps, losses) -> Curve:
        given = self.settings
        tokens = given["batch"] * given["model"]["context"]
        speed = [r["tokens_per_second"] for r in self.rows if "tokens_per_second" in r]
        return Curve(
            optimizer=given["optimizer"],
            learning_rate=given["learning_rate"],
            seed=given["seed"],
            steps=steps,
            losses=losses,
            milliseconds=1e3 * tokens / statistics.median(speed) if speed else math.nan,
            state_bytes=self.starts[-1]["state_bytes"] if self.starts else 0,
        )

    @property
    def is_finished(self) -> bool:
        return self.rows[-1]["step"] >= self.settings["steps"] and not self.has_diverged

    @property
    def described(self) -> dict[str, str]:
        """Settings, and the versions of every start."""
        ran = [flat({k: v for k, v in s.items() if k != "step"}) for s in self.starts]
        keys = dict.fromkeys(key for one in ran for key in one)
        places = {
            key: "; ".join(dict.fromkeys(one.get(key, "-") for one in ran))
            for key in keys
        }
        return flat(self.settings) | (places or {"versions": "not recorded"})

    def key(self, *free: str) -> str:
        """What decides the run, but for the settings named."""
        return str(flat({k: v for k, v in self.settings.items() if k not in free}))


def section(directories: Sequence[pathlib.Path]) -> Section:
    """Runs of one page; those that differ in their seed only are one row.

    Raises:
        UserError: If a directory holds no run, a damaged one, or one without a loss.
    """
    runs = [_Run(directory) for directory in directories]
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        groups.setdefault(run.key("seed"), []).append(run)
    named = dict(zip(_names([*groups.values()]), groups.values(), strict=True))
    is_fair = len({run.key(*FREE) for run in runs}) == 1
    best = _best_adamw(runs) if is_fair else []
    rows = {name: _row(group, best) for name, group in named.items()}
    order = sorted(named, key=lambda name: rows[name].loss)
    found = [n for n, group in named.items() if best and best[0] in _curves(group)]
    adamw = rows[found[0]] if found else None
    methods = [_method(name, rows[name], adamw, named[name]) for name in order]
    return Section(
        title=methods[0].name if len(methods) == 1 else f"{len(runs)} runs",
        source=", ".join(run.name for run in runs),
        settings={run.name: run.described for run in runs},
        columns=(*((h, OWN_COLUMNS.get(h, text)) for h, text in COLUMNS), DONE),
        methods=methods,
        reference=found[0] if found and len(methods) > 1 else None,
        notes=[] if is_fair else [_about(runs)],
        monitors={run.name: run.monitor for run in runs if run.monitor},
    )


def _curves(group: Sequence[_Run]) -> list[Curve]:
    return [run.curve for run in group]


def _best_adamw(runs: Sequence[_Run]) -> list[Curve]:
    """AdamW's runs at its best learning rate, if they are finished."""
    done = [r.curve for r in runs if r.is_finished and r.curve.optimizer == REFERENCE]
    return at_best_learning_rate(done) if done else []


def _row(group: Sequence[_Run], best: Sequence[Curve]):
    is_whole = all(run.is_finished for run in group)
    return row(_curves(group), {c.seed: c for c in best} if is_whole else {})


def _names(groups: Sequence[Sequence[_Run]]) -> list[str]:
    """The shortest names that differ: optimizer, learning rate, directory."""
    firsts = [group[0] for group in groups]
    short = [run.curve.optimizer for run in firsts]
    rates = [f"{run.curve.optimizer} @ {run.curve.learning_rate:g}" for run in firsts]
    whole = [f"{run.curve.optimizer} ({run.name})" for run in firsts]
    choices = (short, rates, whole)
    return next(names for names in choices if len({*names}) == len(names))


def _method(name, row, adamw, group: Sequence[_Run]) -> Method:
    training = [
        [(r["step"], math.nan if r["loss"] is None else r["loss"]) for r in run.rows]
        for run in group
    ]
    curves = [
        dataclasses.replace(run.curve, steps=steps, losses=losses)
        for run, points in zip(group, training, strict=True)
        for steps, losses in [zip(*points, strict=True)]
    ]
    lines = {LOSS: line(_curves(group)), TRAINING: line(curves)}
    is_whole = all(run.is_finished for run in group)
    made = method(name, row, adamw if is_whole else None, lines)
    done = ", ".join(
        f"{run.rows[-1]['step']} of {run.settings['steps']}" for run in group
    )
    return dataclasses.replace(made, cells=(*made.cells, done))


def _about(runs: Sequence[_Run]) -> str:
    flattened = [flat(run.settings) for run in runs]
    keys = dict.fromkeys(key for one in flattened for key in one)
    other = [k for k in keys if len({one.get(k) for one in flattened}) > 1]
    names = ", ".join(key for key in other if key not in FREE)
    return f"The runs also differ in {names}, so they are not compared with AdamW."
