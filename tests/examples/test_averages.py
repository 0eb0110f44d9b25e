"""The example of averages: each method trains, and the evaluated weights differ."""

import jax.numpy as jnp
import pytest

from examples import averages


@pytest.mark.slow
def test_every_method_learns(monkeypatch, capsys):
    monkeypatch.setattr(averages, "RATES", (0.01, 0.02))
    first = averages.losses("constant", [0.0], averages.SEEDS, steps=1).mean()
    found = averages.main(steps=40)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(averages.METHODS)
    means = [jnp.array(each).mean() for _, each in found.values()]
    assert all(mean < first for mean in means)
    assert len({float(mean) for mean in means}) == len(averages.METHODS)
