"""What all recipe tests share."""

import pytest


@pytest.fixture(autouse=True)
def without_probe(monkeypatch):
    # `init` tries out that matrices do not influence one another, at the price of two
    # more compilations; the contract tests keep that on.
    target = "optax_matrix.layout._on_matrices.refuse_coupling"
    monkeypatch.setattr(target, lambda *_: None)
