"""The catalogue against the programs of its authors, if they and PyTorch are there."""

import os
import pathlib
import types

import numpy as np
import pytest

from examples.catalogue import METHODS, programs
from examples.catalogue.authors import PROGRAMS, Program

FOLDER = pathlib.Path(os.environ.get("CATALOGUE_PROGRAMS", "no/folder"))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_method_is_its_authors_program(name):
    """Set CATALOGUE_PROGRAMS to a folder of checkouts (`programs --clone`).

    The real checkout of `scaled_stiefel` has not been tried (`Program.was_run`).
    """
    program = PROGRAMS[name]
    try:
        module, torch = programs.loaded(program, FOLDER)
    except programs.Absent as reason:
        pytest.skip(str(reason))
    assert programs.difference(program, module, torch, np.float64) < program.within


def test_programs_are_of_methods_and_have_checkouts_of_their_own(tmp_path, capsys):
    assert set(PROGRAMS) <= set(METHODS)
    places = {program.checkout: program for program in PROGRAMS.values()}
    one = lambda program: (program.repository, program.at)
    assert len(places) == len({one(program) for program in PROGRAMS.values()})
    programs.main([str(tmp_path), "--clone"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(places)
    line = next(line for line in lines if "pull" in line)
    assert "fetch -q --depth 1 https://github.com/NVIDIA-NeMo" in line
    assert "refs/pull/301/head && git" in line


def test_an_absent_program_has_a_sentence(tmp_path, capsys):
    assert programs.main([str(tmp_path), "lion"]) == {}
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[:3] == ["lion", "-", "-"]
    assert "is not there: run the line of --clone" in line


class _Parameter:
    """As much of PyTorch's as a comparison needs."""

    grad = None

    def __init__(self, value):
        self.value = value

    def detach(self):
        return self

    def numpy(self):
        return self.value


class _Lion:
    def __init__(self, weights, rate, b2):
        self.weights, self.rate, self.b2, self.mean = weights, rate, b2, 0.0

    def step(self):
        g = self.weights.grad
        new = np.sign(0.9 * self.mean + 0.1 * g)
        self.weights.value = self.weights.value - self.rate * new
        self.mean = self.b2 * self.mean + (1 - self.b2) * g


TORCH = types.SimpleNamespace(
    float64=np.float64,
    float32=np.float32,
    tensor=lambda x, dtype: np.asarray(x, dtype),
    nn=types.SimpleNamespace(Parameter=_Parameter),
)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("b2", "differs"), [(0.99, False), (0.5, True)])
def test_a_difference_is_seen(b2, differs):
    make = lambda module, w: module(w, programs.RATE, b2)
    program = Program("lion", "nobody/nothing", "main", "nothing", make)
    found = programs.difference(program, _Lion, TORCH, np.float64)
    assert found > 0.1 if differs else found < 1e-12
