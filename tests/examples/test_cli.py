"""The command line: what works, and mistakes answered in one line."""

import gzip
import json
import subprocess
import sys

import pytest

from examples.pretrain.cli import main
from examples.pretrain.directory import check_same, claimed, locked
from examples.pretrain.errors import UserError

TINY = ("--context", "8", "--batch", "4", "--steps", "4", "--validation", "4")
EVERY = ("--eval-every", "2")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(97, 123)) * 40)
    return str(path)


def mistake(capsys, *arguments):
    """Runs a command that must fail; returns its one line."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


MISTAKES = {
    "unknown argument": (("trian",), "trian"),
    "unknown flag": (("--lr", "1"), "--lr"),
    "unknown optimizer": (("--optimizer", "sgdd"), "muoneq"),
    "unknown size": (("--size", "7b"), "tiny, 60m, 130m, 350m, 1.3b"),
    "missing file": (("--data", "missing.txt"), "no file missing.txt"),
    "indivisible batch": (("--batch", "6", "--accumulate", "4"), "multiple"),
    "no steps": (("--steps", "0"), "--steps must be 1 or more"),
    "negative rate": (("--learning-rate", "-1"), "3e-3"),
    "rate that is none": (("--learning-rate", "big"), "big"),
    "negative seed": (("--seed", "-1"), "--seed must be from 0 to 2147483647"),
    "large seed": (("--seed", "2147483648"), "--seed must be from 0"),
    "too many steps": (("--steps", "2147483648"), "--steps must be below"),
    "rate beyond float32": (("--learning-rate", "1e39"), "3e-3"),
    "blocks of nothing": (("--optimizer", "poet:block=0"), "`block` must be"),
    "long name": (("--data", "x" * 5000), "Cannot read xxx"),
    "nothing to resume": (("--resume",), "start without --resume"),
}


@pytest.mark.parametrize(("arguments", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(capsys, tmp_path, arguments, hint):
    assert hint in mistake(capsys, *arguments, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_short_text_gets_one_line(capsys, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("too short")
    assert "too short" in mistake(capsys, "--data", str(path))


@pytest.mark.parametrize("cut", [9, -1])  # In zlib's part, and in the checksum.
def test_damaged_gzip_gets_one_line(capsys, tmp_path, cut):
    path = tmp_path / "text.txt.gz"
    content = bytearray(gzip.compress(bytes(range(97, 123)) * 40))
    content[cut:] = bytes(255 - byte for byte in content[cut:])
    path.write_bytes(content)
    assert "Cannot read" in mistake(capsys, "--data", str(path))


@pytest.mark.parametrize("command", [(), ("--resume",)])
def test_a_long_name_of_a_directory_gets_one_line(capsys, tmp_path, text, command):
    out = str(tmp_path / ("x" * 300))
    said = mistake(capsys, *command, "--data", text, *TINY, "--out", out)
    assert "File name too long" in said
    assert "another --out" in said


@pytest.mark.parametrize("record", [b"", b'{"model": ', b"[]", b"null", b"\xff\xfe"])
def test_a_damaged_record_gets_one_line(capsys, tmp_path, text, record):
    (tmp_path / "run.json").write_bytes(record)
    out = str(tmp_path)
    said = mistake(capsys, "--resume", "--data", text, *TINY, "--out", out)
    assert "run.json is damaged" in said
    assert "another --out" in said
    assert (tmp_path / "run.json").read_bytes() == record


@pytest.mark.parametrize("record", [{}, {"model": 3}])
def test_a_record_without_settings_is_another_run(capsys, tmp_path, text, record):
    (tmp_path / "run.json").write_text(json.dumps(record))
    arguments = ("--resume", "--data", text, *TINY, "--out", str(tmp_path))
    assert "belongs to another run" in mistake(capsys, *arguments)


def test_what_a_killed_start_leaves_behind_is_no_run(tmp_path):
    for name in ("lock", "run.json.part"):
        (tmp_path / name).write_text("{")
    with claimed(tmp_path, {"seed": 3}, resume=False):
        assert json.loads((tmp_path / "run.json").read_text()) == {"seed": 3}
        with (
            pytest.raises(UserError, match="Another process"),
            claimed(tmp_path, {"seed": 3}, resume=True),
        ):
            pass
    with claimed(tmp_path, {"seed": 3}, resume=True):
        pass


def test_messages_name_the_option_that_the_command_has(tmp_path):
    flag = "--checkpoints"
    for old in ({"seed": 3, "checksum": "a"}, {"seed": 4, "checksum": "b"}):
        with pytest.raises(UserError, match=f"choose another {flag}"):
            check_same(old, {"data": "x", "seed": 4, "checksum": "a"}, tmp_path, flag)
    with locked(tmp_path), pytest.raises(UserError, match=f"choose another {flag}"):
        locked(tmp_path, flag)


def test_a_checksum_is_compared_after_the_settings_that_it_depends_on(tmp_path):
    new = {"data": "c4", "checksum": "a", "model": {"context": 16}}
    old = {"data": "c4", "checksum": "b", "model": {"context": 8}}
    with pytest.raises(UserError, match="with context 8, not 16"):
        check_same(old, new, tmp_path)
    with pytest.raises(UserError, match="text of --data c4 has changed"):
        check_same(old | {"model": new["model"]}, new, tmp_path)


@pytest.mark.broad
def test_a_run_goes_on_with_the_optimizer_that_it_began_with(
    capsys, tmp_path, monkeypatch, text
):
    """A user's file may change between the two."""
    monkeypatch.syspath_prepend(tmp_path)
    module, out = tmp_path / "of_a_user_who_resumes.py", tmp_path / "out"
    module.write_text("import optax\n\nmake = lambda learning_rate: optax.sgd(1.0)\n")
    arguments = ("--data", text, *TINY, "--out", str(out), "--optimizer")
    arguments += (f"{module.stem}:make",)
    assert main([*arguments]) == 0
    assert main([*arguments, "--resume"]) == 0
    capsys.readouterr()
    module.write_text(f"{module.read_text()}# Changed.\n")
    said = mistake(capsys, *arguments, "--resume")
    assert f"The file of --optimizer {module.stem}:make has changed" in said
    record = json.loads((out / "run.json").read_text())
    del record["version"]  # Runs that are older than this setting go on.
    check_same(record, record | {"version": "12345678"}, out)


@pytest.mark.parametrize("command", [(), ("--resume",)])
def test_a_file_as_a_directory_gets_one_line(capsys, tmp_path, text, command):
    out = tmp_path / "file"
    out.write_text("")
    said = mistake(capsys, *command, "--data", text, *TINY, "--out", str(out))
    assert "file is a file; choose another --out." in said


def test_unwritable_place_gets_one_line(capsys, tmp_path, text):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "run")
    assert "--out" in mistake(capsys, "--data", text, *TINY, "--out", out)


@pytest.mark.slow
def test_no_traceback_from_the_module_itself():
    done = subprocess.run(
        [sys.executable, "-m", "examples.pretrain", "--optimizer", "sgdd"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


@pytest.mark.broad
def test_train_and_what_may_follow_it(capsys, tmp_path, text):
    out = str(tmp_path / "run")
    command = ["--data", text, *TINY, *EVERY, "--out", out]
    assert main(command) == 0
    assert "validation loss" in capsys.readouterr().out
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4]
    assert all("validation_loss" in json.loads(line) for line in lines)

    assert "--resume" in mistake(capsys, *command)
    other = mistake(capsys, *command, "--resume", "--seed", "1")
    assert "with seed 0, not 1" in other
    wider = mistake(capsys, *command, "--resume", "--layers", "scan")
    assert "with scan False, not True" in wider
    assert main([*command, "--resume"]) == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() == lines


@pytest.mark.broad
def test_divergence_gets_one_line(capsys, tmp_path, text):
    rate = ("--learning-rate", "1e30")
    out = str(tmp_path / "run")
    assert main(["--data", text, *TINY, *EVERY, *rate, "--out", out]) == 2
    line = capsys.readouterr().err
    assert "smaller --learning-rate" in line
    assert line.count("\n") == 1
