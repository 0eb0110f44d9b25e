"""The demo: its searches, the picture in the terminal, and the page."""

import re

import numpy as np
import pytest

import optax_matrix as om
from examples import demo

STEPS = np.arange(1, 9) * 10
SLOW = np.linspace(5.0, 1.0, 8)


def test_parts_of_a_run_are_averaged():
    ends, means = demo.averaged(np.arange(10.0), 5)
    np.testing.assert_array_equal(ends, [2, 4, 6, 8, 10])
    np.testing.assert_array_equal(means, [0.5, 2.5, 4.5, 6.5, 8.5])


def test_speedup_is_the_first_measured_step_at_the_last_loss_of_the_reference():
    reference = STEPS, SLOW
    fast = STEPS, np.maximum(5.0 - np.arange(8), 0.5)
    assert demo.speedup(fast, reference) == 80 / 50
    assert demo.speedup((STEPS, SLOW + 0.1), reference) is None


def test_the_picture_has_a_letter_at_every_height():
    curves = {"adamw": (STEPS, SLOW), "muoneq": (STEPS, SLOW[::-1])}
    lines = demo.picture(curves).splitlines()
    assert lines[0] == "  5.00 |a      M"
    assert lines[demo.HEIGHT - 1] == "  1.00 |M      a"
    assert "step 80" in lines[-2]
    assert sum(line.count("M") for line in lines[: demo.HEIGHT]) == 8


@pytest.mark.slow
def test_the_demo_runs_and_ends_with_the_readers_model(tmp_path, capsys, monkeypatch):
    """Its `muon` is that of the library, with AdamW's best rate for other leaves."""
    seen, real = [], om.muon
    monkeypatch.setattr(om, "muon", lambda *x, **y: seen.append(y) or real(*x, **y))
    demo.main(["--steps", "8", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for text in ("whole demo", "adamw 0.002", "step", "time", "left", "speedup"):
        assert text in printed
    (best,) = re.findall(r"^adamw +at (\S+)", printed, re.MULTILINE)
    (last,) = re.findall(r"^now your model: (om\.sweep\(.*)$", printed, re.MULTILINE)
    assert f"om.muoneq(rate, other_learning_rate={best})" in last
    assert set(seen[0]) == {"other_learning_rate", "weight_decay", "dimension_numbers"}
    assert float(seen[0]["other_learning_rate"](1)) == pytest.approx(float(best))
    written = (tmp_path / "report.html").read_text()
    assert "<svg" in written
    assert "muoneq" in written
