"""The benchmark of POET's maps compares like with like."""

import numpy as np
import pytest

from examples.study.benchmarks import orthogonal


@pytest.mark.broad
def test_all_contestants_make_the_same_blocks():
    """The series to their errors at |Q| of about 0.2, the exact maps to rounding."""
    entries = orthogonal.contestants(2, 8)
    assert len(entries) == 2 * len(orthogonal.MAPS)
    made = {name: np.asarray(make(p)) for name, (make, p) in entries.items()}
    want = made["inverse, full"]
    assert np.abs(want - np.eye(8)).max() > 0.05
    for name, got in made.items():
        exact = name.startswith(("inverse", "solve"))
        np.testing.assert_allclose(got, want, atol=1e-6 if exact else 2e-3)


@pytest.mark.slow
def test_it_prints_ratios_to_the_first_line(capsys):
    orthogonal.compare_blocks(1, 4, 1)
    orthogonal.compare_updates(8, 4, 1)
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if line.startswith("inverse, full")).split()
    assert first[3] == first[5] == "1.00"
    assert lines[-2].split()[0::2] == ["solve", "1.00"]
    assert sum(line.startswith("neumann") for line in lines) == 5
