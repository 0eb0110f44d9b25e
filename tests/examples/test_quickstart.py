"""The quick starts learn, in NNX and in Linen, and MuonEq is what moves the kernels."""

import optax
import pytest

import optax_matrix as om
from examples import quickstart, quickstart_linen


@pytest.mark.broad
@pytest.mark.parametrize(
    "example", [quickstart, quickstart_linen], ids=["nnx", "linen"]
)
def test_quickstart_learns_by_muoneq(example, monkeypatch):
    losses = example.main(30)
    assert losses[-1] < 0.8 * losses[0]
    monkeypatch.setattr(om, "muoneq", optax.adamw)
    other = example.main(2)
    assert other[0] == losses[0]
    assert other[1] != losses[1]
