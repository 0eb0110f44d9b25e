"""Damaged checkpoints, bad disks, and states that are not finite: one line each."""

import dataclasses
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.pretrain import step, train as training
from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.cli import main
from examples.pretrain.config import SIZES
from examples.pretrain.directory import Metrics, read
from examples.pretrain.errors import UserError
from examples.pretrain.optimizers import OPTIMIZERS

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = ("--context", "8", "--batch", "4", "--steps", "6", "--validation", "4")
OFTEN = ("--eval-every", "2", "--checkpoint-every", "2")
pytestmark = pytest.mark.broad


def restored(out):
    """Step, arrays and position of the checkpoint that a run would continue."""
    model = dataclasses.replace(SIZES["tiny"], context=8)
    like = step.Trainer(model, OPTIMIZERS["adamw"], 6, 1).init(0)
    checkpoints = Checkpoints(out / "checkpoints")
    done, state, position = checkpoints.restore(like)
    checkpoints.close()
    return done, jax.tree.leaves(state), position


def assert_same(got, want):
    assert got[0] == want[0]
    assert got[2] == want[2]
    for a, b in zip(got[1], want[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with checkpoints of steps 4 and 6, the command that made it, its end."""
    place = tmp_path_factory.mktemp("finished")
    (place / "text.txt").write_bytes(bytes(range(97, 123)) * 40)
    command = ["--data", str(place / "text.txt"), *SETTINGS, *OFTEN]
    assert main([*command, "--out", str(place / "run")]) == 0
    return place / "run", command, restored(place / "run")


@dataclasses.dataclass
class Again:
    """A copy of the finished run, and a way to start commands in it."""

    out: pathlib.Path
    command: list[str]
    end: tuple
    capsys: pytest.CaptureFixture

    def start(self, *more, code=0):
        """What the command said beside its result; one line if it failed."""
        self.capsys.readouterr()
        assert main([*self.command, *more]) == code
        said = self.capsys.readouterr().err
        assert "Traceback" not in said
        if code:
            assert said.startswith("error: ")
            assert said.count("\n") == 1, said
        return said

    def afresh(self):
        shutil.rmtree(self.out)
        return self.out, self.start, self.end


@pytest.fixture
def again(finished, tmp_path, capsys):
    original, command, end = finished
    out = tmp_path / "run"
    shutil.copytree(original, out)
    return Again(out, [*command, "--out", str(out)], end, capsys)


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """One wrong byte, which neither Orbax nor the file system notices."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [pathlib.Path.unlink, halve, flip])
def test_damage_to_any_file_is_noticed_or_does_no_harm(tmp_path, damage, capsys):
    """The last checkpoint is restored exactly, or else the one before it."""
    w = jax.random.normal(jax.random.key(0), (64, 64))
    state = lambda n: {"w": n + w, "count": jnp.int32(n)}
    whole = tmp_path / "whole"
    checkpoints = Checkpoints(whole)
    for n in (1, 2):
        checkpoints.save(n, state(n), {"position": n})
    checkpoints.close()
    files = [p.relative_to(whole) for p in (whole / "2").rglob("*") if p.is_file()]
    fell_back = 0
    for number, file in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(whole, copy)
        damage(copy / file)
        capsys.readouterr()
        checkpoints = Checkpoints(copy)
        done, got, position = checkpoints.restore(state(0))
        checkpoints.close()
        said = capsys.readouterr().err
        assert position == {"position": done}, file
        jax.tree.map(np.testing.assert_array_equal, got, state(done))
        assert ("step 1" in said) == (done == 1), (file, said)
        fell_back += done == 1
    assert 3 <= fell_back < len(files)


def test_several_processes_are_told_how_to_fall_back(tmp_path, monkeypatch):
    """They cannot agree to: some may have read their part of what is damaged."""
    checkpoints = Checkpoints(tmp_path)
    for n in (1, 2):
        checkpoints.save(n, {"w": jnp.ones(3) * n}, n)
    checkpoints.close()
    (tmp_path / "2" / "data" / "metadata").unlink()
    checkpoints = Checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(UserError) as error:
            checkpoints.restore({"w": jnp.ones(3)})
    checkpoints.close()
    old, new = re.search(r"rename (\S+) to (\S+) to go on", str(error.value)).groups()
    (tmp_path / old).rename(tmp_path / new)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore({"w": jnp.ones(3)})[0] == 1
    checkpoints.close()


def test_resume_falls_back_to_the_last_whole_checkpoint_and_says_so(again):
    out, start, end = again.out, again.start, again.end
    largest = max(
        (out / "checkpoints" / "6").rglob("*"), key=lambda p: p.stat().st_size
    )
    halve(largest)
    said = start("--resume")
    assert said.count("\n") == 1
    assert "step 6" in said
    assert "continues from step 4" in said
    assert_same(restored(out), end)
    assert [row["step"] for row in read(out / "metrics.jsonl")] == [2, 4, 6]
    assert start("--resume") == ""


@pytest.mark.slow
def test_an_empty_step_folder_is_passed_over(again):
    out, start, end = again.out, again.start, again.end
    shutil.rmtree(out / "checkpoints" / "6")
    (out / "checkpoints" / "6").mkdir()
    assert "continues from step 4" in start("--resume")
    assert_same(restored(out), end)


@pytest.mark.slow
def test_a_run_without_checkpoints_starts_over_and_says_so(again):
    out, start, end = again.out, again.start, again.end
    shutil.rmtree(out / "checkpoints")
    assert "no checkpoint" in start("--resume")
    assert_same(restored(out), end)
    assert [row["step"] for row in read(out / "metrics.jsonl")] == [2, 4, 6]


def test_no_whole_checkpoint_is_an_error_and_touches_nothing(again):
    out, start = again.out, again.start
    for number in (4, 6):
        shutil.rmtree(out / "checkpoints" / str(number) / "data")
    before = sorted(out.rglob("*"))
    said = start("--resume", code=2)
    assert "none of the checkpoints" in said
    assert {p for p in before if "checkpoints" in p.parts} == {
        p for p in out.rglob("*") if "checkpoints" in p.parts
    }


@pytest.fixture
def during(monkeypatch):
    """Runs a function in the middle of a run: at its first evaluation, in step 2."""

    def do(what):
        evaluate, todo = training.evaluate, [what]

        def hook(*arguments):
            if todo:
                todo.pop()()
            return evaluate(*arguments)

        monkeypatch.setattr(training, "evaluate", hook)

    return do


@pytest.mark.slow
@pytest.mark.parametrize(
    "free",  # Nothing for metrics either, or enough for them.
    [pytest.param(0, marks=pytest.mark.slow), 100_000],
)
def test_a_full_disk_gets_one_line_and_can_be_resumed(again, during, full_disk, free):
    out, start, end = again.afresh()
    during(lambda: full_disk(free))
    said = start(code=2)
    assert "too large" in said
    assert "resume" in said
    full_disk(resource.RLIM_INFINITY)
    start("--resume")
    assert_same(restored(out), end)
    assert [row["step"] for row in read(out / "metrics.jsonl")] == [2, 4, 6]


def test_a_line_of_metrics_that_fits_in_part_is_an_error(tmp_path, full_disk):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(step=1)
    full_disk(20)
    with pytest.raises(UserError, match="No space left"):
        metrics.write(step=2)
    full_disk(resource.RLIM_INFINITY)
    metrics.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_a_folder_that_vanishes_gets_one_line(again, during):
    out, start, _ = again.afresh()
    during(lambda: shutil.rmtree(out))
    assert "vanished" in start(code=2)
    assert not out.exists()


# Starts a module without CAP_DAC_OVERRIDE: a folder's permissions hold for root too.
AS_ANYBODY = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="drops a capability of Linux")
def test_a_disk_that_turns_read_only_gets_one_line(again):
    out, *_ = again.afresh()
    every = ("--log-every", "1", "--steps", "100000", "--checkpoint-every", "30")
    module = ("-m", "examples.pretrain", *again.command, *every)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", AS_ANYBODY, *module]
    child = subprocess.Popen(command, cwd=ROOT, **pipes)
    try:
        while len(read(out / "metrics.jsonl")) < 2:
            assert child.poll() is None
            time.sleep(0.01)
        for place in (out / "checkpoints", out):
            place.chmod(0o555)
        said = child.communicate(timeout=120)[1]
    finally:
        child.kill()
        child.wait()
        for place in (out, out / "checkpoints"):
            place.chmod(0o755)
    assert child.returncode == 2
    assert said.count("\n") == 1
    assert said.startswith("error: ")
    assert "Permission denied" in said


def test_a_state_that_is_not_finite_is_never_saved(again):
    """The loss is NaN from the third step on, and looked at in the sixth only."""
    out, start, _ = again.afresh()
    seldom = ("--log-every", "100", "--eval-every", "100", "--checkpoint-every", "1")
    said = start("--learning-rate", "1e38", *seldom, code=2)
    assert "not finite" in said
    assert "smaller --learning-rate" in said
    _, state, _ = restored(out)
    assert all(np.isfinite(x).all() for x in state)


def test_a_state_that_is_not_finite_never_displaces_one_that_is(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    finite = {"params": jnp.ones(3), "opt_state": jnp.ones(3, jnp.bfloat16)}
    for n in (1, 2):
        checkpoints.save(n, finite, {})
    for n, key in enumerate(finite, 3):
        bad = finite | {key: finite[key].at[1].set(jnp.nan)}
        with pytest.raises(UserError, match=f"step {n} is not finite"):
            checkpoints.save(n, bad, {})
    assert checkpoints.restore(finite)[0] == 2
    checkpoints.close()


@pytest.mark.slow
def test_a_changed_text_is_not_resumed(again, tmp_path):
    text = tmp_path / "text.txt"
    original = pathlib.Path(again.command[again.command.index("--data") + 1])
    text.write_bytes(original.read_bytes())
    _, start, _ = again.afresh()
    start("--data", str(text))
    text.write_bytes(original.read_bytes()[::-1])
    said = start("--resume", "--data", str(text), code=2)
    assert "has changed" in said
    assert "text.txt" in said


def test_another_validation_is_not_resumed(again):
    said = again.start("--resume", "--validation", "8", code=2)
    assert "with validation 4, not 8" in said


def test_a_second_process_is_refused_and_the_first_goes_on(again, during):
    out, start, end = again.afresh()
    codes = []
    during(lambda: codes.append(main([*again.command, "--resume"])))
    said = start()
    assert codes == [2]
    assert said.count("\n") == 1
    assert "Another process" in said
    assert_same(restored(out), end)
