"""Tiny programs, of which no use may be read wrongly in silence."""

import importlib
import warnings

import pytest
from _uses.battery import GROUPS, answer, answer_of, is_right

from optax_matrix.matrices.use.rule import by_use

for name in "hard", "product", "layer", "program", "attack":
    importlib.import_module(f"_uses.{name}_models")

# Leaves that ask although a reader of the model knows better.
ASKED: dict[str, set[str]] = {}

ALL = [(group, name) for group, cases in GROUPS.items() for name in cases]


@pytest.mark.parametrize(("group", "name"), ALL, ids=[name for _, name in ALL])
def test_no_leaf_is_read_wrongly_in_silence(group, name):
    fn, params, inputs, answers = GROUPS[group][name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdicts = by_use(fn, params, *inputs).verdicts
    wrong, asked = [], set()
    for verdict in verdicts:
        if sum(n > 1 for n in verdict.shape) < 2:
            continue
        want = answer_of(verdict.path, answers)
        assert want is not None, verdict.path
        got = answer(verdict)
        if is_right(got, want, verdict.shape):
            continue
        if got.startswith("?"):
            asked.add(verdict.path)
        else:
            wrong.append(f"{verdict.path} {verdict.shape}: {got}, not {want}")
    assert not wrong, "\n".join(wrong)
    assert asked == ASKED.get(name, set())
