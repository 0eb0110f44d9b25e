"""Tiny programs, of which no use may be read wrongly in silence."""

import importlib

import pytest
from _uses.battery import GROUPS, judged, read

for name in "hard", "product", "layer", "program", "attack", "odd", "end", "framework":
    importlib.import_module(f"_uses.{name}_models")

# Leaves that ask although a reader of the model knows better, and why.
ASKED = {
    "scaled_for_each_example": {"w": "a product after data have met it entry by entry"},
    "gated_for_each_example": {"w": "a product after data have met it entry by entry"},
    "full_gate_for_each_example": {
        "w": "a product after data have met it entry by entry"
    },
    "permuted_by_an_input": {"w": "a product that sums over its rows"},
    "spectral_norm_with_u_as_input": {"w": "products in both directions"},
    "random_field": {"w": "softmax or maximum over all outputs, a router?"},
    "weights_turn_in_a_ring": {"ws": "scan"},
    "positions_by_constant_one_hot": {
        "pos": "a product with a constant, then with data"
    },
    "layers_shared_by_groups": {"ws": "a product with repeated rows"},
    "layers_repeated_in_a_scan": {"ws": "a product with repeated rows"},
    "mapped_branches": {
        "a": "a product after data have met it entry by entry",
        "b": "a product after data have met it entry by entry",
    },
    "mapped_switch": {
        "a": "a product after data have met it entry by entry",
        "b": "a product after data have met it entry by entry",
        "c": "a product after data have met it entry by entry",
    },
    "solved_by_data": {"w": "custom_linear_solve"},
    "two_of_four": {"w": "sort"},
    "rotated_by_a_constant_before_and_after": {
        "v": "a product with a constant, then with data"
    },
}


@pytest.mark.quick("hard")
@pytest.mark.parametrize("group", GROUPS)
def test_no_leaf_is_read_wrongly_in_silence(group):
    failures = []
    for name, make in GROUPS[group].items():
        fn, params, inputs, answers = make()
        try:
            wrong, asked = judged(read(fn, params, *inputs), answers)
        except Exception as error:
            failures.append(f"{name}: {error!r}")
            continue
        failures += [f"{name}: {text}" for text in wrong]
        if asked != ASKED.get(name, {}):
            failures.append(f"{name} asks {asked}")
    assert not failures, "\n".join(failures)
