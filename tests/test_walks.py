"""Guards of the way of a gradient through the package, and of what it does not do."""

import os
import re
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import walk
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


# The most files that one update enters, and the most returns to a file that was left
# before, in a new process (tests/walk.py). The limiter of alice is a function with a
# state of its own block, and where a state lies between steps is in a file of its own.
# So is whether a chain asks for residual sides, without which q, k, v and o are one
# stack. Owners have two more: what the last rounds of all groups share (`_pools`), and
# the collectives. Alice in a process of its own returns 18 times more than as here.
LIMITS = {
    "muoneq": (40, 170),
    "alice": (56, 425),
    "poet": (47, 800),  # State of skipped matrices is left alone where it is made.
    "muoneq with owners": (52, 410),  # Joined leaves, and slots of state.
}


@pytest.mark.broad
@pytest.mark.parametrize("name", LIMITS)
def test_an_update_goes_forward(name):
    found = walk.counts(walk.update(*walk.methods()[name]))
    too_many = [n > limit for n, limit in zip(found, LIMITS[name], strict=True)]
    assert not any(too_many), (
        f"An update of {name} enters {found[0]} files and returns {found[1]} times, "
        f"above {LIMITS[name]}. `python tests/walk.py` shows where. Ask for a value "
        "where it is needed instead of passing it through, decide once instead of "
        "asking again, or raise the limit here with a reason."
    )


def test_precision_is_not_passed_on():
    """The policy is in force where a step is traced: `linalg.precision`."""
    code = re.compile(
        r"\bproducts\s*[=:.]|\bproducts_of\b|\bprecision\s*=(?!=)|\bdot=(?!roots\b)\w+"
    )
    allowed = {"recipes/_recipe.py", "recipes/_method.py"}
    found = []
    for room in ("transforms", "recipes"):
        for path in sorted((Path(ROOT) / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            lines = _code_of(path)
            found += [f"{name}: {x}" for x in lines if code.search(x)]
    wrong = [x for x in found if x.partition(":")[0] not in allowed]
    assert not wrong, (
        "Transforms and recipes have no argument for precision. Multiply by `project`, "
        f"`statistics`, `bases` or `roots` of `linalg.precision`: {wrong}"
    )
    assert len(found) <= 4


def _code_of(path):
    """The lines of a file without its docstrings and comments."""
    text = re.sub(r'r?"""(.*?)"""', "", path.read_text(), flags=re.DOTALL)
    return [line.partition("#")[0].strip() for line in text.splitlines()]
