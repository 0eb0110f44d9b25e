"""What a step does not do: guards of the way of a gradient through the package."""

import os
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from _registry import RECIPES

import optax_matrix as om

ROOT = str(Path(om.__file__).parent) + os.sep
SHAPES = {"up": (4, 6), "down": (6, 4)}
PARAMS = {
    **{n: {"kernel": jax.ShapeDtypeStruct(x, jnp.float32)} for n, x in SHAPES.items()},
    "bias": jax.ShapeDtypeStruct((6,), jnp.float32),
}


def callers(room, f):
    """The functions of other rooms of the package that call into this one, in `f`."""
    inside, found = ROOT + room + os.sep, set()

    def note(frame, event, _):
        if event != "call" or not frame.f_code.co_filename.startswith(inside):
            return
        while frame.f_code.co_filename.startswith(inside):
            frame = frame.f_back
        file = frame.f_code.co_filename.removeprefix(ROOT)
        found.add(f"{file}: {frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return found


MAKE = {
    **RECIPES,
    "aro, full_model": lambda rate: om.aro(rate, full_model=True),
    "muoneq, quantized": lambda rate: om.muoneq(
        rate, placement=om.quantized(min_size=1)
    ),
}


def checks_in_a_step(names):
    """For each of these recipes the functions that check arguments in a step."""
    found = {}
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tx = MAKE[name](1e-3)
            state = jax.eval_shape(tx.init, PARAMS)
            trace = lambda tx=tx, state=state: jax.eval_shape(
                lambda *args: tx.update(*args), PARAMS, state, PARAMS
            )
            # The first trace may fill caches; the second one is as any later one.
            seen = callers("_arguments", trace) and callers("_arguments", trace)
        if seen:
            found[name] = sorted(seen)
    return found


@pytest.mark.parametrize(
    "names",
    [
        pytest.param({"muoneq", "soap", "scion"}, id="some", marks=pytest.mark.broad),
        pytest.param({*MAKE}, id="all", marks=pytest.mark.slow),
    ],
)
def test_arguments_are_checked_in_the_factory_and_not_in_a_step(names):
    found = checks_in_a_step(sorted(names))
    assert not found, (
        "These functions check arguments in every trace of `update`. Make blocks in "
        "the recipe, not in the step, and give them kernels as arguments, so that "
        f"their options are checked once: {found}"
    )
