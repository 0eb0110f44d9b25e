"""The quick starts learn, in NNX and in Linen, and MuonEq is what moves the kernels."""

import optax
import pytest

import optax_matrix as om
from examples import quickstart, quickstart_linen, quickstart_rates


@pytest.mark.slow
def test_quickstart_in_linen_learns_by_muoneq(monkeypatch):
    losses = quickstart_linen.main(30)
    assert losses[-1] < 0.8 * losses[0]
    adamw = lambda rate, **_: optax.adamw(rate, weight_decay=1e-4)
    monkeypatch.setattr(om, "muoneq", adamw)
    other = quickstart_linen.main(2)
    assert other[0] == losses[0]
    assert other[1] != losses[1]


@pytest.mark.slow
def test_rates_are_chosen_for_the_training_of_the_quick_start():
    """The runs under `vmap` are those of the loop."""
    for make in quickstart_rates.METHODS.values():
        (loss,) = quickstart_rates.search(make, 1e-2, [3], steps=5).finals[1e-2]
        alone = quickstart.train(make(1e-2), seed=3, steps=5)
        assert loss == pytest.approx(float(alone), rel=1e-4)


def test_shown_seeds_chose_no_rate():
    assert not set(quickstart_rates.SEEDS) & set(quickstart_rates.CHOOSING)
    assert {len(rates) for rates in quickstart_rates.RATES.values()} == {5}
    assert len(quickstart_rates.SEEDS) == 5


@pytest.mark.slow
def test_muoneq_wins_on_every_seed_at_the_best_rates(capsys):
    found = quickstart_rates.main()
    adamw, ours = (one.finals[one.best] for one in found.values())
    best = {name: one.best for name, one in found.items()}
    assert best == {"AdamW": 1e-2, "MuonEq": 4e-2}  # Those of the quick start.
    assert best["AdamW"] == quickstart_rates.ADAMW
    for name, rate in best.items():
        assert rate in quickstart_rates.RATES[name][1:-1]  # Inside of the grid.
    assert (ours < 0.9 * adamw).all()
    assert "mean" in capsys.readouterr().out
