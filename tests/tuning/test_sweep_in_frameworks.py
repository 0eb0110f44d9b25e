"""A sweep trains what a plain loop trains: NNX, Linen, Equinox, plain trees."""

import jax
import numpy as np
import pytest
from _sweeps import (
    BATCHES,
    HELD_OUT,
    PROBLEMS,
    RATES,
    loop,
    make,
)

import optax_matrix as om

pytestmark = pytest.mark.broad


def swept(kind, **options):
    start, loss = PROBLEMS[kind]
    options = {"rates": RATES, "widen": 0, "progress": False} | options
    return om.sweep(make, loss, start(), BATCHES, **options)


def arrays(model):
    """Its numbers, counters of keys among them, as they are now."""
    leaves = [x for x in jax.tree.leaves(model) if hasattr(x, "dtype")]
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.array(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


@pytest.mark.parametrize("kind", PROBLEMS)
def test_one_after_the_other_has_the_bits_of_a_loop(kind):
    found = swept(kind, memory=0)
    assert not found.together
    for rate in RATES:
        losses, _ = loop(kind)(rate)
        np.testing.assert_array_equal(found.losses[rate], [losses])


@pytest.mark.parametrize("kind", PROBLEMS)
def test_together_is_the_loops_up_to_rounding_and_the_same_choice(kind):
    start, loss = PROBLEMS[kind]
    model = start()
    before = arrays(model)
    of = lambda model: loss(model, HELD_OUT)
    options = {"rates": RATES, "widen": 0, "progress": False, "evaluate": of}
    found = om.sweep(make, loss, model, BATCHES, **options)
    assert found.together
    finals = []
    for rate in RATES:
        losses, trained = loop(kind)(rate)
        np.testing.assert_allclose(found.losses[rate], [losses], rtol=1e-4)
        finals.append(float(of(trained)))
    np.testing.assert_allclose(np.ravel([*found.finals.values()]), finals, rtol=1e-4)
    assert found.best == RATES[int(np.argmin(finals))]
    for old, new in zip(before, arrays(model), strict=True):
        np.testing.assert_array_equal(old, new)
