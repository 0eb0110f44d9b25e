"""Moments in few bits: every method trains, and fewer bits are fewer bytes."""

import dataclasses

import numpy as np
import pytest

from examples import few_bits

# Matrices of 4096 numbers are the smallest whose moments have few bits.
TOY = dataclasses.replace(
    few_bits.CONFIG, embed=64, mlp=64, heads=2, kv_heads=2, layers=1, context=16
)


@pytest.mark.slow
def test_fewer_bits_are_fewer_bytes_and_still_train(monkeypatch, capsys):
    monkeypatch.setattr(few_bits, "CONFIG", TOY)
    found = few_bits.main(steps=2, seeds=(0,))
    assert list(found) == [(name, n) for name in few_bits.RATES for n in few_bits.BITS]
    losses = np.array(list(found.values()))
    assert (losses < np.log(256)).all()  # That of a model that knows nothing.
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    shares = np.array([float(row[2]) for row in rows]).reshape(len(few_bits.RATES), -1)
    assert (np.diff(shares) < 0).all()
