"""The questions that every framework is asked, inside its environment."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import optax_matrix as om

DEVICES, STEPS, STOP = 8, 30, 15
# AdamW's rate, and one that is near each method's best in the study.
METHODS = {
    "adamw": 3e-3,
    "muoneq": 1e-2,
    "soap": 3e-3,
    "aro": 1e-2,
    "alice": 1e-2,
    "poet": 3e-3,
}
# What a model of a few rows needs: the papers' ranks and intervals are for large ones.
OPTIONS: dict[str, dict[str, Any]] = {
    "soap": {"update_interval": 5},
    "alice": {"rank": 8, "leading": 2, "update_interval": 5},
    "poet": {"block": 8, "merge_interval": 10},
}


@dataclasses.dataclass
class Run:
    """What a trainer ends with.

    Attributes:
        losses: Loss of each step that this process trained.
        state: The optimizer's state, sharded as the framework has it.
        params: The parameters as the optimizer sees them (for `groups`).
        dimension_numbers: What the optimizer was told about them.
    """

    losses: list[float]
    state: Any
    params: Any
    dimension_numbers: Any = None


Train = Callable[[str, int, pathlib.Path | None], Run]


class Used(NamedTuple):
    """A model of a framework, read in two ways.

    Attributes:
        rule: What `matrices.by_use` says of it.
        params: The parameters as the optimizer sees them (for `groups`).
        own: What the framework says of them: its numbers, or the names of its axes;
            None for the default rule.
    """

    rule: om.matrices.UseRule
    params: Any
    own: Any = None


def recipe(method: str, learning_rate: Any = None, **options: Any) -> Any:
    """One of our recipes, at its rate and with the options of a small model."""
    rate = METHODS[method] if learning_rate is None else learning_rate
    return getattr(om, method)(rate, **{**OPTIONS.get(method, {}), **options})


def tokens(step: int, batch: int, length: int, vocabulary: int) -> np.ndarray:
    """A batch that depends on the step alone: rows that count up, so easy to learn."""
    rng = np.random.default_rng(step)
    start = rng.integers(vocabulary, size=(batch, 1))
    return (start + np.arange(length)) % vocabulary


def bytes_per_device(state: Any) -> int:
    """Bytes of a state on the device that holds most of them."""
    held: dict[Any, int] = {}
    for x in jax.tree.leaves(state):
        if isinstance(x, jax.Array):
            for shard in x.addressable_shards:
                held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values(), default=0)


def groups(params: Any, dimension_numbers: Any = None) -> dict[str, str]:
    """Each leaf by path: ``"other"``, or which axes are its matrix's.

    ``"1 -> 2, 3"`` is a matrix that sums over axis 1 and produces axes 2 and 3.
    """
    found = om.matrices.decisions.decide(params, dimension_numbers)
    return {path: _axes(d.view) for path, d in found.items()}


def _axes(view: om.matrices.MatrixView | None) -> str:
    if view is None:
        return "other"
    name = lambda axes: ", ".join(map(str, axes))
    return f"{name(view.reduction_axes)} -> {name(view.output_axes)}"


def groups_by_use(rule: om.matrices.UseRule) -> dict[str, str]:
    """`groups` by the use alone, without axis names; ``"asks"`` if it does not tell."""
    return {v.path: _group_of(v) for v in rule.verdicts}


def _group_of(verdict: Any) -> str:
    if verdict.kind in ("unclear", "not used"):
        return "asks"
    numbers = verdict.numbers if verdict.kind == "matrix" else None
    leaf = jax.ShapeDtypeStruct(verdict.shape, "float32")
    return groups({"": leaf}, lambda _: {"": numbers})[""]


def main(
    train: Train, table: dict[str, str], used: Callable[[], Used] | None = None
) -> None:
    """Runs one of the processes, and writes what it found.

    Args:
        train: Trains the framework's smallest model with a method (a name in
            `METHODS`; "adamw" is the framework's own) up to a step, counted from the
            model's start. With a folder it goes on from the checkpoint there, if
            there is one, and leaves one at the end.
        table: The group of every leaf as the model's authors would have it, in the
            words of `groups`.
        used: Makes the model and reads it by use, for the process ``used``, which
            `examples.frameworks.uses` starts.
    """
    phase, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if phase == "used":
        assert used is not None
        found = _used(used(), table)
        (folder / "used.json").write_text(json.dumps(found))
        return
    (folder / "checkpoints").mkdir(exist_ok=True)
    report = {}
    for method in METHODS:
        kept = folder / "checkpoints" / method
        try:
            report[method] = _PHASES[phase](train, method, kept, table)
        except Exception as error:  # One method's failure is a line of the table.
            report[method] = {"error": f"{type(error).__name__}: {error}"}
            if "--raise" in sys.argv:
                raise
        print(phase, method, json.dumps(report[method]), flush=True)
    (folder / f"{phase}.json").write_text(json.dumps(report))


def _first(train: Train, method: str, kept: pathlib.Path, table: dict) -> dict:
    whole = train(method, STEPS, None)
    stopped = train(method, STOP, kept)
    found = {} if method == "adamw" else groups(whole.params, whole.dimension_numbers)
    wrong = {k: v for k, v in found.items() if table.get(k) != v}
    missing = {k: None for k in table if found and k not in found}
    return {
        "losses": whole.losses,
        "stopped": stopped.losses,
        "bytes": bytes_per_device(whole.state),
        "wrong": {**wrong, **missing},
        "leaves": len(table),
    }


def _resumed(train: Train, method: str, kept: pathlib.Path, _: dict) -> dict:
    return {"losses": train(method, STEPS, kept).losses}


def _used(model: Used, table: dict[str, str]) -> dict[str, Any]:
    print(model.rule, flush=True)
    used, own = groups_by_use(model.rule), groups(model.params, model.own)
    wrong = lambda found: {
        path: [found.get(path), table.get(path)]
        for path in {**table, **found}
        if found.get(path) not in (table.get(path), "asks")
    }
    asked = [path for path, group in used.items() if group == "asks"]
    return {
        "leaves": len(table),
        "own": wrong(own),
        "use": wrong(used),
        "asked": asked,
    }


_PHASES = {"first": _first, "resumed": _resumed}
