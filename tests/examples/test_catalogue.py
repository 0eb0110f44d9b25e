"""Every method of the catalogue is its restatement in NumPy, through `on_matrices`."""

import pytest

from examples import catalogue
from examples.catalogue import __main__ as command, kernels

pytestmark = pytest.mark.usefixtures("x64")
# Powers of Gram matrices amplify rounding; injected numbers are float32.
ERRORS = {"pmuon": 1e-8, "sso": 1e-8, "fismo": 1e-8, "dynmuon": 1e-7}


@pytest.mark.broad
@pytest.mark.daily("anvil", "namo", "cosmos", "nora", "cans_shampoo")
@pytest.mark.parametrize("name", catalogue.METHODS)
def test_a_method_is_its_restatement(name):
    assert catalogue.METHODS[name].error() < ERRORS.get(name, 1e-9)


@pytest.mark.broad
@pytest.mark.daily("anvil", "conda", "scaled_stiefel")
@pytest.mark.parametrize("name", catalogue.METHODS)
def test_a_chain_alone_is_its_restatement(name):
    assert catalogue.METHODS[name].error(alone=True) < ERRORS.get(name, 1e-9)


@pytest.mark.broad
def test_the_command_prints_errors(capsys):
    (error,) = command.main(["lion"]).values()
    assert error == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["method", "--", "lion"]


@pytest.mark.broad
def test_an_error_is_seen():
    """A restatement with the other sign."""
    lion = catalogue.METHODS["lion"]
    other = catalogue.Method(lion.make).in_numpy
    method = other.__self__
    other(lambda g, kept, w: -lion.restated(g, kept, w))
    assert method.error() >= 1


def test_cubics_are_the_closest_to_one():
    """Chebyshev: the error has its size at three points, with signs by turns."""
    low, high = 1e-3, 1.0
    for a, b, _ in kernels._cubics(low, 5):
        top = (-a / (3 * b)) ** 0.5
        errors = [a * x + b * x**3 - 1 for x in (low, top, high)]
        assert low < top < high
        assert errors == pytest.approx([-errors[1], errors[1], -errors[1]])
        low, high = 1 - errors[1], 1 + errors[1]
