"""Real processes: what two of them train together is what one of them trains."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from examples import train_sharded as example

ROOT = pathlib.Path(__file__).parents[2]
WIDTHS = {"embed": 32, "mlp": 64, "heads": 4, "kv_heads": 2, "context": 16}
# Four layers: `gate` and `up` are eight matrices, so that every device owns one.
SMALL = WIDTHS | {"layers": 4, "scan": True}
ARGUMENTS = ("--size", "small", "--mesh", "fsdp=4,tp=2", "--steps", "6")

# One process of several.
CHILD = f"""
import dataclasses, sys
import jax
from examples import train_sharded as example
example.SIZES["small"] = dataclasses.replace(example.SIZES["tiny"], **{SMALL})
example.main([*{ARGUMENTS}, *sys.argv[1:]])
assert (jax.process_count(), jax.device_count()) == (2, 8)
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tail(path):
    lines = path.read_text(errors="replace").splitlines()
    told = [line for line in lines if not line.startswith("[Gloo]")]
    return "\n".join([f"--- {path.name}:", *told[-30:]])


def run_together(commands, logs, seconds, meanwhile=lambda _: None, code=0):
    """Runs the commands at once; when one fails or time is up, ends the others."""
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
            failed = any(child.poll() not in (None, code) for child in children)
            if failed or time.monotonic() > deadline:
                time.sleep(2)  # The others may have something to say about it.
                break
            time.sleep(0.1)
        codes = [child.poll() for child in children]
    assert codes == [code] * len(codes), "\n".join([f"{codes}", *map(tail, logs)])


def two_commands(out, *options):
    """The commands of two processes with four devices each, and their logs."""
    address = f"127.0.0.1:{free_port()}"
    join = ("--cpu-devices", "4", "--coordinator", address, "--processes", "2")
    files = ("--losses", str(out / "losses"), "--checkpoints", str(out / "states"))
    command = (sys.executable, "-c", CHILD, *options, *files, *join)
    logs = [out / f"process {i}" for i in range(2)]
    return [(*command, "--process", str(i)) for i in range(2)], logs


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Of a recipe, where two processes with four devices each left their losses."""

    @functools.cache
    def train(name):
        out = tmp_path_factory.mktemp(name)
        commands, logs = two_commands(out, "--optimizer", name)
        run_together(commands, logs, seconds=400)
        assert "validation loss" in logs[0].read_text()
        assert "loss" not in logs[1].read_text()
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
@pytest.mark.parametrize("name", ["muoneq", "racs"])
def test_two_processes_train_as_one_does(two_processes, train_alone, name):
    together = json.loads((two_processes(name) / "losses").read_text())
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
def test_one_process_continues_the_checkpoint_of_two(two_processes, train_alone):
    out = two_processes("muoneq")
    together = json.loads((out / "losses").read_text())
    checkpoints = out / "states"
    shutil.rmtree(checkpoints / "6")  # As if killed before; 5 is the one left.
    alone = train_alone("muoneq", "--checkpoints", str(checkpoints))
    assert alone["losses"][:5] == together["losses"][:5]
    np.testing.assert_allclose(alone["losses"], together["losses"], rtol=1e-6)
    last = together["validation_loss"], alone["validation_loss"]
    np.testing.assert_allclose(*last, rtol=1e-6)


@pytest.mark.slow
def test_sigterm_to_one_process_ends_both_after_the_same_step(tmp_path):
    commands, logs = two_commands(tmp_path, "--optimizer", "muoneq", "--steps", "5000")
    sent = []

    def signal_one(children):
        if not sent and "step 10 loss" in logs[0].read_text():
            sent.append(children[1].send_signal(signal.SIGTERM))

    code = 128 + signal.SIGTERM
    run_together(commands, logs, seconds=400, meanwhile=signal_one, code=code)
    said = [re.search(r"interrupted at step (\d+)", log.read_text()) for log in logs]
    steps = {int(match[1]) for match in said}
    assert len(steps) == 1
    assert (tmp_path / "states" / str(*steps)).exists()
