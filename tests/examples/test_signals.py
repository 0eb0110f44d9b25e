"""Runs that are interrupted: Ctrl-C, SIGTERM and SIGKILL, then resumed bit for bit."""

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from examples.pretrain import errors, step, train as training
from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.cli import main
from examples.pretrain.config import SIZES
from examples.pretrain.directory import read
from examples.pretrain.optimizers import OPTIMIZERS

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 60
OFTEN = ("--checkpoint-every", "2")


def arguments(out, *more):
    settings = f"--optimizer muoneq --context 16 --batch 4 --steps {STEPS}"
    flags = "--seed 3 --accumulate 2 --validation 8 --log-every 1 --eval-every 20"
    every = ("--checkpoint-every", "15", "--out", str(out))
    return [*settings.split(), *flags.split(), *every, *more]


def outcome(out):
    """Weights, optimizer state and metrics of a finished run, but for its speed."""
    model = dataclasses.replace(SIZES["tiny"], context=16)
    like = step.Trainer(model, OPTIMIZERS["muoneq"], STEPS, 2).init(0)
    checkpoints = Checkpoints(out / "checkpoints")
    done, state, position = checkpoints.restore(like)
    checkpoints.close()
    rows = read(out / "metrics.jsonl")
    for row in rows:
        del row["tokens_per_second"]
    return done, jax.tree.leaves(state), position, rows


def assert_same(got, want):
    assert got[0] == want[0] == STEPS
    assert [row["step"] for row in got[3]] == list(range(1, STEPS + 1))
    assert got[2:] == want[2:]
    for a, b in zip(got[1], want[1], strict=True):
        np.testing.assert_array_equal(a, b)


def start(arguments):
    """A process of its own; what it says beside its result goes to a pipe."""
    command = [sys.executable, "-W", "error", "-m", "examples.pretrain", *arguments]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **streams)


@pytest.fixture(scope="module", autouse=True)
def _interruptible():
    """Ctrl-C works in the started processes even if this one is a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def finish(process):
    """The exit code, and what the process said."""
    try:
        said = process.communicate(timeout=240)[1]
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The outcome of a run that nothing interrupts."""
    out = tmp_path_factory.mktemp("straight") / "run"
    assert finish(start(arguments(out))) == (0, "")
    return outcome(out)


ENDS = {
    signal.SIGKILL: (-signal.SIGKILL, ""),
    signal.SIGTERM: (143, "interrupted at step"),
    signal.SIGINT: (130, "interrupted at step"),
}


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_resumed_after_a_signal_is_bit_for_bit_the_same(tmp_path, straight, number):
    out = tmp_path / "run"
    process = start(arguments(out))
    deadline = time.monotonic() + 240
    while len(read(out / "metrics.jsonl")) < 20:  # Past a checkpoint.
        assert process.poll() is None, "the run ended before it was interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    code, said = finish(process)
    assert code == ENDS[number][0]
    assert said.startswith(ENDS[number][1])
    assert said.count("\n") == (number != signal.SIGKILL)
    reached = read(out / "metrics.jsonl")[-1]["step"]
    assert 20 <= reached < STEPS
    saved = max(int(p.name) for p in (out / "checkpoints").glob("[0-9]*[0-9]"))
    assert saved == (reached if number != signal.SIGKILL else reached // 15 * 15)
    assert finish(start(arguments(out, "--resume"))) == (0, "")
    assert_same(outcome(out), straight)


def weights(out):
    model = dataclasses.replace(SIZES["tiny"], context=16)
    like = step.Trainer(model, OPTIMIZERS["adamw"], 8, 2).init(0)
    checkpoints = Checkpoints(out / "checkpoints")
    done, state, _ = checkpoints.restore(like)
    checkpoints.close()
    return done, jax.tree.leaves(state)


@pytest.mark.slow
def test_sigterm_saves_and_the_second_signal_does_not_wait(
    tmp_path, monkeypatch, capsys
):
    evaluate, coming = training.evaluate, []

    def hook(*given):
        while coming:
            os.kill(os.getpid(), coming.pop())
        return evaluate(*given)

    monkeypatch.setattr(training, "evaluate", hook)
    more = ("--eval-every", "2", "--optimizer", "adamw", "--steps", "8")
    straight, once, twice = (tmp_path / name for name in ("straight", "once", "twice"))
    assert main(arguments(straight, *more)) == 0
    coming += [signal.SIGTERM]
    assert main(arguments(once, *more)) == 143
    said = capsys.readouterr().err
    assert said.startswith("interrupted at step 2; ")
    assert said.count("\n") == 1
    assert weights(once)[0] == 2
    coming += [signal.SIGINT, signal.SIGTERM]  # The last one first.
    assert main(arguments(twice, *more)) == 130
    assert capsys.readouterr().err.startswith("interrupted; ")
    assert not (twice / "checkpoints" / "2").exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert main(arguments(once, *more, "--resume")) == 0
    for got, want in zip(weights(once), weights(straight), strict=True):
        jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.slow
def test_a_signal_after_the_last_chance_to_save_is_answered_a_step_later(
    tmp_path, monkeypatch, capsys
):
    out, coming, due = tmp_path / "run", [signal.SIGTERM], training._due

    def hook(step, run, *periods):
        if step == 3 and periods == (15,) and coming:  # Whether to save.
            os.kill(os.getpid(), coming.pop())
        return due(step, run, *periods)

    monkeypatch.setattr(training, "_due", hook)
    assert main(arguments(out, "--optimizer", "adamw", "--steps", "8")) == 143
    assert capsys.readouterr().err.startswith("interrupted at step 4; ")
    assert weights(out)[0] == 4


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """What a whole run takes."""
    begun = time.monotonic()
    out = tmp_path_factory.mktemp("timed") / "run"
    assert finish(start(arguments(out, *OFTEN)))[0] == 0
    return time.monotonic() - begun


@pytest.mark.parametrize("handling", [errors.raised, errors.deferred])
def test_a_signal_that_is_ignored_stays_ignored(handling):
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with handling():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, old)


def test_a_signal_that_python_dropped_ends_the_run_before_its_steps():
    """Python drops what a handler raises inside of a callback of the collector."""
    with errors.raised():
        with contextlib.suppress(errors.Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        with pytest.raises(errors.Interrupted) as caught, errors.deferred():
            pass
    assert caught.value.number == signal.SIGTERM


# In all, five or more in each test; about half of them in the middle of a save.
KILLS = int(os.environ.get("KILLS", "20"))


def unfinished(out):
    """The checkpoints that are being written, or that a killed run left so."""
    return {path.name for path in (out / "checkpoints").glob("*.orbax-checkpoint-tmp*")}


def kill(process, out, seconds, saves):
    """Kills a process after some seconds, or in its so many-th save if that is not 0.

    Returns its exit code, and whether it left a save unfinished.
    """
    deadline, old, seen = time.monotonic() + seconds, unfinished(out), set()
    while process.poll() is None:
        if len(seen) >= saves > 0 or (not saves and time.monotonic() > deadline):
            break
        old &= (now := unfinished(out))  # Until this process has removed them.
        seen |= now - old
        time.sleep(0.003)
    process.kill()
    return finish(process)[0], bool(unfinished(out) - old)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(KILLS // 5))
def test_killed_at_random_moments_and_resumed_it_is_the_same(
    tmp_path, straight, seconds, seed
):
    """While it starts, trains, saves, or right after it was resumed.

    `KILLS=100 python -m pytest -m slow -k killed_at_random tests/examples -rP` kills
    it a hundred times and prints how many saves that left unfinished.
    """
    out, draw, kills, cut_short = tmp_path / "run", random.Random(seed), 0, 0
    while kills < 5 or not cut_short:
        resume = ["--resume"] * (out / "run.json").exists()
        process = start(arguments(out, *OFTEN, *resume))
        saves = draw.choice([0, draw.randint(1, 10)])
        code, cut = kill(process, out, draw.uniform(0.2, 1) * seconds, saves)
        if code:
            assert code == -signal.SIGKILL
            kills += 1
            cut_short += cut
        else:
            assert_same(outcome(out), straight)
            out = tmp_path / f"run after {kills}"
    resume = ["--resume"] * (out / "run.json").exists()
    assert finish(start(arguments(out, *OFTEN, *resume)))[0] == 0
    assert_same(outcome(out), straight)
    print(f"{kills} kills, {cut_short} of them in a save")
