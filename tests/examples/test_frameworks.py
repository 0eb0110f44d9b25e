"""The harness of `make test-frameworks` finds faults; no framework is needed."""

import json
import sys
import types

import jax.numpy as jnp
import pytest

import optax_matrix as om
from examples.frameworks import _report, _trial, uses
from examples.frameworks._environments import ENVIRONMENTS

LOSSES = [3.0, 2.0, 1.5, 1.0]
TABLE = {"up/kernel": "0 -> 1", "norm/scale": "other"}
SHAPES = {"up": {"kernel": (4, 8)}, "norm": {"scale": (4,)}}
REQUIRED = next(name for name, e in ENVIRONMENTS.items() if e.required)


def first(**changes):
    found = {"losses": LOSSES, "stopped": LOSSES[:2], "bytes": 10, "wrong": {}}
    return {**found, "leaves": 2, **changes}


def result(first_run, resumed=LOSSES[2:]):
    return _report.Result("1.0", {"adamw": first_run}, {"adamw": {"losses": resumed}})


def faults(*args, **kwargs):
    return " ".join(_report.faults(result(*args, **kwargs)))


def test_a_sound_run_has_no_faults():
    sound = result(first())
    assert list(_report.faults(sound)) == []
    assert _report.status({REQUIRED: sound}) == 0
    assert "equal" in _report.table({REQUIRED: sound})


@pytest.mark.parametrize(
    ("changed", "resumed", "fault"),
    [
        ({}, [1.5, 1.0000001], "differ by 1.0e-07"),
        ({}, [1.5], "3 losses in place of 4"),
        ({"stopped": [3.0, 2.1]}, LOSSES[2:], "differ by 1.0e-01"),
        ({"losses": [*LOSSES[:3], 3.0]}, [1.5, 3.0], "did not fall"),
        ({"wrong": {"up/kernel": "other"}}, LOSSES[2:], "up/kernel is 'other'"),
        ({"error": "ValueError: no"}, LOSSES[2:], "ValueError: no"),
    ],
)
def test_what_is_wrong_is_a_fault_and_fails(changed, resumed, fault):
    assert fault in faults(first(**changed), resumed)
    assert _report.status({REQUIRED: result(first(**changed), resumed)}) == 1


def test_a_method_that_was_not_resumed_is_a_fault():
    lost = _report.Result("1.0", {"adamw": first()}, {})
    assert "did not run" in " ".join(_report.faults(lost))


def test_only_a_required_framework_may_not_be_skipped(monkeypatch):
    skipped = _report.Result(skipped="no such Python")
    optional = types.SimpleNamespace(required=False)
    monkeypatch.setitem(_report.ENVIRONMENTS, "optional", optional)
    assert _report.status({REQUIRED: skipped}) == 1
    assert _report.status({"optional": skipped}) == 0
    assert "no such Python" in _report.table({"optional": skipped})


def trained(shapes):
    """A trainer whose loss depends on the step alone."""

    def train(_, steps, folder):
        start = 0
        if folder and folder.exists():
            start = int(folder.read_text())
        elif folder:
            folder.write_text(str(steps))
        ones = {m: {n: jnp.ones(s) for n, s in x.items()} for m, x in shapes.items()}
        losses = [1.0 / (i + 1) for i in range(start, steps)]
        return _trial.Run(losses, ones, ones)

    return train


def tried(monkeypatch, tmp_path, shapes):
    for phase in ("first", "resumed"):
        monkeypatch.setattr(sys, "argv", ["trial", phase, str(tmp_path), "--raise"])
        _trial.main(trained(shapes), TABLE)
    read = lambda phase: json.loads((tmp_path / f"{phase}.json").read_text())
    return _report.Result("1.0", read("first"), read("resumed"))


def test_a_trial_compares_groups_and_restarts(monkeypatch, tmp_path):
    found = tried(monkeypatch, tmp_path, SHAPES)
    assert list(_report.faults(found)) == []
    assert set(found.first) == set(_trial.METHODS)
    assert found.first["muoneq"]["bytes"] == 4 * (4 * 8 + 4)


@pytest.mark.parametrize(
    ("shapes", "path"),
    [
        ({**SHAPES, "more": {"kernel": (4, 8)}}, "more/kernel"),
        ({"up": {"kernel": (4, 8)}}, "norm/scale"),
        ({**SHAPES, "up": {"kernel": (2, 4, 8)}}, "up/kernel"),
    ],
    ids=["unlisted", "missing", "another group"],
)
def test_a_leaf_that_differs_from_the_table_is_found(
    monkeypatch, tmp_path, shapes, path
):
    found = tried(monkeypatch, tmp_path, shapes)
    assert f"muoneq: {path} is" in " ".join(_report.faults(found))


@pytest.mark.parametrize("method", [m for m in _trial.METHODS if m != "adamw"])
def test_every_method_takes_its_options(method):
    assert hasattr(_trial.recipe(method), "update")


def test_use_is_compared_with_the_table_and_with_what_the_framework_says(
    monkeypatch, tmp_path
):
    params = {
        "up": jnp.ones((4, 8)),
        "turned": jnp.ones((8, 8)),
        "first": jnp.ones((4, 4)),
        "out": jnp.ones((8, 3)),
    }

    def call(p, x):
        return jnp.tanh(jnp.tanh(x @ (p["first"] @ p["up"])) @ p["turned"].T) @ p["out"]

    def used():
        numbers = {"first|up": None}  # Nothing is asked.
        rule = om.matrices.by_use(call, params, jnp.ones((2, 4)), numbers=numbers)
        return _trial.Used(rule, params, om.matrices.by_path(exclude="out"))

    table = {"up": "0 -> 1", "turned": "1 -> 0", "first": "0 -> 1", "out": "other"}
    monkeypatch.setattr(sys, "argv", ["trial", "used", str(tmp_path)])
    _trial.main(None, table, used)
    found = json.loads((tmp_path / "used.json").read_text())
    assert found["own"] == {"turned": ["0 -> 1", "1 -> 0"]}
    assert found["use"] == {}
    assert found["asked"] == ["first", "up"]
    assert uses.cells(found) == ("4", "3", "2, asks 2")
    table["turned"] = "0 -> 1"
    _trial.main(None, table, used)
    found = json.loads((tmp_path / "used.json").read_text())
    assert found["use"] == {"turned": ["1 -> 0", "0 -> 1"]}
