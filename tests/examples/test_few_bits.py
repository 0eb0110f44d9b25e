"""Moments in few bits: rows are read again, and the table compares seed by seed."""

import dataclasses
import json

import numpy as np
import pytest

from examples import few_bits
from examples.few_bits import BITS, Config
from examples.pretrain.config import SIZES
from examples.study.bench import results
from examples.study.bench.config import Result

TINY = dataclasses.replace(
    SIZES["tiny"], embed=64, mlp=96, heads=2, kv_heads=2, layers=1, context=16
)
LOSSES = {32: (2.0, 2.2, 1.8), 8: (2.1, 2.2, 1.8), 4: (2.3, 2.5, 2.1)}


def result(loss, size=0):
    return Result(loss, [], milliseconds=1.0, state_bytes=size, seconds=1.0)


def written(path, seeds=(0, 1, 2), left_out=()):
    for name in few_bits.RATES:
        for bits in BITS:
            for seed in seeds:
                config = Config(name, bits, seed, 7)
                if config not in left_out:
                    one = result(LOSSES[bits][seed], bits * few_bits._weights() // 8)
                    results.append(config, one, path, "")


def cells(text):
    return [[x.strip() for x in line.split("|")[1:-1]] for line in text.split("\n")[2:]]


def test_differences_are_those_of_the_same_seeds(tmp_path):
    """Their 95% interval is 4.303 standard errors of the mean, with three seeds."""
    path = tmp_path / "rows.jsonl"
    written(path)
    rows = cells(few_bits.table(path, 7))
    exact, eight, four = rows[:3]
    assert exact == ["`muoneq`", "32", "4.00", "3", "2.0000 ± 0.2000", "", ""]
    half = 4.3027 * np.std([0.1, 0, 0], ddof=1) / 3**0.5
    assert eight[4:] == ["2.0333 ± 0.2082", f"+0.0333 ± {half:.4f}", ""]
    half = 4.3027 * np.std([0.2, 0.3, 0.3], ddof=1) / 3**0.5
    assert four[2:] == [
        *("0.50", "3", "2.3000 ± 0.2000"),
        *("+0.3000 ± 0.0000", f"+0.2667 ± {half:.4f}"),
    ]


def test_seeds_that_a_row_lacks_are_left_out_of_its_method(tmp_path):
    path = tmp_path / "rows.jsonl"
    written(path, left_out=[Config("soap", 4, 1, 7)])
    *rows, _, note = few_bits.table(path, 7).split("\n")
    assert [row.split("|")[4].strip() for row in rows[2:]] == ["3"] * 3 + ["2"] * 3
    assert note == "Runs that are missing: 1."


@pytest.mark.broad
def test_runs_go_on_where_they_stopped(tmp_path, monkeypatch):
    """Each row says what code it is of; fewer bits take fewer bytes."""
    monkeypatch.setattr(few_bits, "MODEL", TINY)
    few_bits._trainer.cache_clear()
    path, done = tmp_path / "rows.jsonl", []
    train = few_bits.train

    def interrupted(config):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(config)
        return train(config)

    monkeypatch.setattr(few_bits, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        few_bits.main(2, (0,), ("muoneq",), path)
    done.clear()
    few_bits.main(2, (0,), ("muoneq",), path)
    assert done == [Config("muoneq", 4, 0, 2)]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["config"]["bits"] for row in rows] == [*BITS]
    exact, _, four = (row["result"]["loss"] for row in rows)
    assert four != exact
    assert all(len(row["where"]["commit"]) in (12, 13) for row in rows)
    sizes = [row["result"]["state_bytes"] for row in rows]
    assert sizes == sorted({*sizes}, reverse=True)
    few_bits._trainer.cache_clear()
