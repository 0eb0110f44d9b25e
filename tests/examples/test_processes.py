"""Real processes: what several train together is what one of them trains.

If one is killed, the others end by themselves, and one goes on from their checkpoint.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from examples import train_sharded as example
from examples.processes import together

ROOT = pathlib.Path(__file__).parents[2]
WIDTHS = {"embed": 32, "mlp": 64, "heads": 4, "kv_heads": 2, "context": 16}
# Four layers: `gate` and `up` are eight matrices, so that every device owns one.
SMALL = WIDTHS | {"layers": 4, "scan": True}
ARGUMENTS = ("--size", "small", "--mesh", "fsdp=4,tp=2", "--steps", "6")
LOST = {-signal.SIGKILL, -signal.SIGABRT, 1}  # The last two if another is killed.

# One process of several, or of one.
CHILD = f"""
import dataclasses, sys
import jax
from examples import train_sharded as example
example.SIZES["small"] = dataclasses.replace(example.SIZES["tiny"], **{SMALL})
example.main([*{ARGUMENTS}, *sys.argv[1:]])
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tail(path):
    lines = path.read_text(errors="replace").splitlines()
    told = [line for line in lines if not line.startswith("[Gloo]")]
    return "\n".join([f"--- {path.name}:", *told[-30:]])


def run_together(commands, logs, seconds, meanwhile=lambda _: None, ends=(0,)):
    """Runs the commands at once; when one fails or time is up, ends the others.

    Returns their exit codes, all of them among `ends`.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    children = []
    with contextlib.ExitStack() as stack:
        for command, log in zip(commands, logs, strict=True):
            streams = {
                "stdout": stack.enter_context(log.open("w")),
                "stderr": subprocess.STDOUT,
            }
            child = subprocess.Popen(command, cwd=ROOT, env=environment, **streams)
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        deadline = time.monotonic() + seconds
        while any(child.poll() is None for child in children):
            meanwhile(children)
            failed = any(child.poll() not in (None, *ends) for child in children)
            if failed or time.monotonic() > deadline:
                time.sleep(2)  # The others may have something to say about it.
                break
            time.sleep(0.01)
        codes = [child.poll() for child in children]
    assert set(codes) <= set(ends), "\n".join([f"{codes}", *map(tail, logs)])
    return codes


def commands_of(count, out, *options, devices=8):
    """The commands of so many processes that share the devices, and their logs."""
    join = ("--cpu-devices", str(devices // count))
    if count > 1:
        address = f"127.0.0.1:{free_port()}"
        join += ("--coordinator", address, "--processes", str(count))
    files = ("--losses", str(out / "losses"), "--checkpoints", str(out / "states"))
    command = (sys.executable, "-c", CHILD, *options, *files, *join)
    logs = [out / f"process {i}" for i in range(count)]
    if count == 1:
        return [command], logs
    return [(*command, "--process", str(i)) for i in range(count)], logs


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Of a recipe and a number of processes, where they left their losses."""

    @functools.cache
    def train(name, count):
        out = tmp_path_factory.mktemp(name)
        commands, logs = commands_of(count, out, "--optimizer", name)
        run_together(commands, logs, seconds=400)
        assert "validation loss" in logs[0].read_text()
        assert all("loss" not in log.read_text() for log in logs[1:])
        return out

    return train


@pytest.fixture
def train_alone(tmp_path, monkeypatch):
    """Trains in this process, which has all eight devices; returns what it wrote."""
    small = dataclasses.replace(example.SIZES["tiny"], **SMALL)
    monkeypatch.setitem(example.SIZES, "small", small)

    def train(name, *more):
        losses = tmp_path / "losses.json"
        arguments = (*ARGUMENTS, "--optimizer", name, "--losses", str(losses), *more)
        example.main(list(arguments))
        return json.loads(losses.read_text())

    return train


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("muoneq", 2), ("racs", 2), ("muoneq", 4)])
def test_processes_train_as_one_does(processes, train_alone, name, count):
    """Two with four devices each, or four with two, as one with eight."""
    together = json.loads((processes(name, count) / "losses").read_text())
    alone = train_alone(name)
    # The same sums over the same eight devices, but between processes in another order:
    # 1e-7 of a loss, and ten times that where six updates passed it on. Another batch,
    # or an update that went astray, shows in the third digit.
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-6)
    last = together["validation_loss"], alone["validation_loss"]
    np.testing.assert_allclose(*last, rtol=1e-6)
    assert len(alone["losses"]) == 6
    assert alone["losses"][-1] < alone["losses"][0] - 0.01


@pytest.mark.slow
def test_one_process_continues_the_checkpoint_of_two(processes, train_alone):
    out = processes("muoneq", 2)
    together = json.loads((out / "losses").read_text())
    checkpoints = out / "states"
    shutil.rmtree(checkpoints / "6")  # As if killed before; 5 is the one left.
    alone = train_alone("muoneq", "--checkpoints", str(checkpoints))
    assert alone["losses"][:5] == together["losses"][:5]
    np.testing.assert_allclose(alone["losses"], together["losses"], rtol=1e-6)
    last = together["validation_loss"], alone["validation_loss"]
    np.testing.assert_allclose(*last, rtol=1e-6)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory", "has no memory left .*; lower --batch"),
        ("UNKNOWN: connection closed", "seems lost .*closed.* same command: resume"),
    ],
)
def test_a_failure_inside_a_step_gets_one_line(cause, said, monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="1"), together("resume"):
        raise jax.errors.JaxRuntimeError(cause)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert re.search(f"process 0 of 2 .*{said}", line)


@pytest.mark.slow
def test_sigterm_to_one_process_ends_both_after_the_same_step(tmp_path):
    commands, logs = commands_of(2, tmp_path, "--steps", "5000")
    sent = []

    def signal_one(children):
        if not sent and "step 10 loss" in logs[0].read_text():
            sent.append(children[1].send_signal(signal.SIGTERM))

    code = 128 + signal.SIGTERM
    run_together(commands, logs, seconds=400, meanwhile=signal_one, ends={code})
    said = [re.search(r"interrupted at step (\d+)", log.read_text()) for log in logs]
    steps = {int(match[1]) for match in said}
    assert len(steps) == 1
    assert (tmp_path / "states" / str(*steps)).exists()


def saved(states):
    """The steps of whole checkpoints, and of those that are being written."""
    names = [path.name for path in states.glob("[0-9]*")]
    whole = {int(name) for name in names if name.isdigit()}
    return whole, {int(name.split(".")[0]) for name in names if not name.isdigit()}


def final_word(log):
    """The last line of a process; that of a killed one comes right after its end."""
    deadline = time.monotonic() + 20
    while True:
        *_, line = ["", *log.read_text(errors="replace").splitlines()]
        if line.startswith("error: ") or time.monotonic() > deadline:
            return line
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "victim", "saves", "rest"),
    [(2, 0, True, 1), (2, 1, False, 1), (4, 2, False, 2)],
)
def test_a_killed_process_ends_the_others_and_fewer_go_on_with_fewer_devices(
    tmp_path, train_alone, count, victim, saves, rest
):
    """The first, which the others need for more, in a save; or another in a step."""
    states, steps, sent = tmp_path / "states", ("--steps", "40"), []
    commands, logs = commands_of(count, tmp_path, *steps)

    def kill_one(children):
        whole, partial = saved(states)
        due = partial if saves else whole
        if not sent and max(due, default=0) >= 8:
            sent.append(time.monotonic())
            children[victim].kill()

    codes = run_together(commands, logs, 400, meanwhile=kill_one, ends=LOST)
    # In a step at once, while they wait at a checkpoint after `HEARTBEAT`.
    assert time.monotonic() - sent[0] < 60
    assert [code == -signal.SIGKILL for code in codes] == [
        i == victim for i in range(count)
    ]
    for number, log in enumerate(logs):
        last = final_word(log)
        assert last.startswith(f"error: process {number} of {count} "), tail(log)
        assert last.endswith(f"from the last checkpoint in {states}.")
        assert ("was killed" in last) or number != victim
    begun = max(saved(states)[0])
    assert begun < 40

    half = ("--mesh", "fsdp=2,tp=2")
    run_together(*commands_of(rest, tmp_path, *steps, *half, devices=4), 400)
    losses = json.loads((tmp_path / "losses").read_text())
    want = train_alone("muoneq", *steps)
    # More steps pass on more than in the tests above, and four devices add otherwise.
    np.testing.assert_allclose(losses["losses"], want["losses"], rtol=1e-5)
    last = losses["validation_loss"], want["validation_loss"]
    np.testing.assert_allclose(*last, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits as Linux has them")
def test_a_disk_that_is_full_for_one_process_ends_both_and_keeps_what_was_saved(
    tmp_path,
):
    states, sent = tmp_path / "states", []
    commands, logs = commands_of(2, tmp_path, "--steps", "40")

    def fill_disk(children):
        if not sent and 8 in saved(states)[0]:
            free = 20_000  # For the log, but for no weights.
            sent.append(
                resource.prlimit(children[0].pid, resource.RLIMIT_FSIZE, (free, free))
            )

    codes = run_together(commands, logs, 400, meanwhile=fill_disk, ends={1, -6})
    assert codes[0] == 1
    last = final_word(logs[0])
    assert last.startswith(f"error: Cannot write the checkpoints in {states} (")
    assert "too large" in last
    assert "resume" in last
    assert final_word(logs[1]).startswith("error: ")
    assert max(saved(states)[0]) >= 8
    run_together(*commands_of(1, tmp_path, "--steps", "40"), 400)
