"""Tiny programs, of which no use may be read wrongly in silence."""

import importlib

import pytest
from _uses.battery import GROUPS, judged, read

for name in "hard", "product", "layer", "program", "attack", "odd":
    importlib.import_module(f"_uses.{name}_models")

# Leaves that ask although a reader of the model knows better, and why.
ASKED: dict[str, dict[str, str]] = {}

ALL = [(group, name) for group, cases in GROUPS.items() for name in cases]


@pytest.mark.parametrize(("group", "name"), ALL, ids=[name for _, name in ALL])
def test_no_leaf_is_read_wrongly_in_silence(group, name):
    fn, params, inputs, answers = GROUPS[group][name]()
    wrong, asked = judged(read(fn, params, *inputs), answers)
    assert not wrong, "\n".join(wrong)
    assert asked == ASKED.get(name, {})
