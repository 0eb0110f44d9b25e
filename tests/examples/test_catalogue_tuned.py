"""Methods of the catalogue with a learning rate: their sizes, decay and settings."""

import functools

import jax
import numpy as np
import optax
import pytest

import optax_matrix as om
from examples.catalogue import METHODS, tuned
from examples.study.equal import own

NAMES = "anvil", "conda", "cosmos", "muown", "namo"
RATE = 0.01  # That of the catalogue, which Muown has in its steps.
SIZES = {"anvil": 0.2 * 48**0.5, "namo": 0.2 * 48**0.5, "conda": 0.25}
rng = np.random.default_rng(0)
PARAMS = {"kernel": rng.normal(size=(32, 48)).astype(np.float32)}
GRADS = {"kernel": rng.normal(size=(32, 48)).astype(np.float32)}
NUMBERS = {"kernel": om.MatrixDimensionNumbers(0, 1)}
pytestmark = pytest.mark.broad


def first_update(tx):
    return tx.update(GRADS, tx.init(PARAMS), PARAMS)[0]["kernel"]


@functools.cache
def step(name):
    """The first update of a method, a function of its settings, which are traced."""
    make = getattr(tuned, name)
    rate = optax.constant_schedule(RATE)
    update = lambda **settings: first_update(
        make(rate, dimension_numbers=NUMBERS, **settings)
    )
    jitted = jax.jit(update)
    return lambda **settings: np.asarray(jitted(**settings))


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_is_that_of_the_catalogue_at_a_rate(name):
    method = METHODS[name]
    options = {"cosmos": {"rank": 8}, "conda": {"side": "short"}}
    chain = method.make(**options.get(name, {}))
    plain = om.on_matrices(
        chain, dimension_numbers=NUMBERS, needs_params=method.needs_params
    )
    exact = np.asarray(jax.jit(lambda: first_update(plain))())
    if not method.finished:
        exact = -RATE * SIZES.get(name, 1.0) * exact
    got = step(name)(weight_decay=0.0)
    inner = np.vdot(got, exact)
    assert inner > 0.97 * np.linalg.norm(got) * np.linalg.norm(exact)
    assert abs(inner / np.vdot(exact, exact) - 1) < 0.2  # Newton-Schulz: 0.7 to 1.2.


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_is_decoupled(name):
    still = step(name)(weight_decay=0.0)
    decayed = step(name)(weight_decay=0.5) - still
    if name == "muown":  # The decay shortens rows, which have turned already.
        turned = PARAMS["kernel"] + still
        columns = np.linalg.norm(PARAMS["kernel"], axis=0)
        want = -RATE * 0.5 * columns * turned / np.linalg.norm(turned, axis=0)
    else:
        want = -RATE * 0.5 * PARAMS["kernel"]
    np.testing.assert_allclose(decayed, want, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_search_finds_its_axes(name):
    search = own.entry("books", f"examples.catalogue.tuned:{name}", 0.008).own
    axes = ("b1", "decay") if name == "muown" else ("b1", "b2", "decay")
    assert search == (0.008, axes)
