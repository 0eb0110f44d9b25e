"""Tiny programs, of which no use may be read wrongly in silence."""

import importlib

import pytest
from _uses.battery import GROUPS, judged, read

QUICK = "hard", "product", "layer", "program", "attack", "odd", "end"
for name in (*QUICK, "framework"):
    importlib.import_module(f"_uses.{name}_models")

# Leaves that ask although a reader of the model knows better, and why.
ASKED: dict[str, dict[str, str]] = {}

ALL = [
    pytest.param(
        group, name, id=name, marks=[] if group in QUICK else pytest.mark.broad
    )
    for group, cases in GROUPS.items()
    for name in cases
]


@pytest.mark.parametrize(("group", "name"), ALL)
def test_no_leaf_is_read_wrongly_in_silence(group, name):
    fn, params, inputs, answers = GROUPS[group][name]()
    wrong, asked = judged(read(fn, params, *inputs), answers)
    assert not wrong, "\n".join(wrong)
    assert asked == ASKED.get(name, {})
