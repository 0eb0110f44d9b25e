"""The model of the compiled training step, and what counts as hidden."""

import pytest

from examples.study.benchmarks import training
from examples.study.benchmarks._overlap import Flight


def test_the_model_has_the_sizes_of_the_command_line():
    model = training.model_of(training.parse(["--layers", "2", "--embed", "256"]))
    sizes = model.layers, model.embed, model.mlp, model.heads, model.kv_heads
    assert sizes == (2, 256, training.SIZES["mlp"], 4, 4)
    assert not model.scan


@pytest.mark.parametrize(
    ("topology", "rate", "clock"),
    [("v5e:4x4", 90e9, 1.5e9), ("v5p:2x2x1", 18e10, 1.75e9)],
)
def test_hidden_is_what_has_as_much_other_work_beside(topology, rate, clock):
    size = 2**23
    least = int(size / rate * clock)  # Cycles that so many bytes need.
    flights = [Flight(size, least - 1, True), Flight(size, least + 1), Flight(size)]
    assert training.hidden(flights, topology) == 1
    assert training.hidden(flights, "v6e:4x4") == "-"
