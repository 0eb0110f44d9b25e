"""Which recipes stand for all others where trying every one would take too long.

`make test-fast` tries what is quick of the contract on QUICK. `make test` tries that
and `owners` on KINDS, one recipe of each kind of state, and what is broad of the
contract on DAILY. `make test-slow` does the rest, and all of the contract on the
variants of recipes, so a new recipe of a known kind belongs in none of these sets.

All of these run with most of XLA's optimizations off, as compiling is most of the time.
`make test-optimized`, a part of `make test-slow`, runs the trajectories of all recipes
and their contract on sharded parameters once more, with the optimizations on.
"""

import os

import pytest

# Of this run; `_setup` sets the variable where the environment has none.
OPTIMIZED = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0"

QUICK = {"muon", "racs"}
KINDS = QUICK | {
    "swan",
    "aro",
    "normuon",
    "mars_adamw",
    "eigen_adam",
    "shampoo",
    "dion",
    "galore",
}
# What a recipe rarely changes is tried on these every day.
DAILY = {"muon", "aro"}
# Statements and measures that a change to the code rarely reaches.
RARELY = {"diagnostics", "clients", "weights"}
# What papers state of their methods: in `make test-slow` only.
HARDLY_EVER = {"theory"}
# Files whose tests import a framework or train a model of one.
FRAMEWORKS = {
    *("test_keras.py", "test_maxtext.py", "test_equinox_vit.py", "test_tunix.py"),
    *("test_optax_wrappers.py", "test_kauldron.py", "test_levanter.py"),
    "test_levanter_decay.py",
}
# Blocks that compile for long; recipes or tests of their own have them every day.
LONG_BLOCKS = (
    *("rotate-", "precondition", "orthogonalize_low", "orthogonalize-polar_q"),
    *("in_eigenbasis", "project_", "scale_by_tracked"),
    *("quantize_state", "orthogonalize-gram"),
)


def tiered(names):
    """Names for `parametrize`: QUICK as they are, DAILY ones broad, others slow."""
    mark = lambda name: pytest.mark.broad if name in DAILY else pytest.mark.slow
    return [n if n in QUICK else pytest.param(n, marks=mark(n)) for n in names]


def is_optimized(path):
    """Whether `make test-optimized` runs the tests of this file."""
    return path.parent.name == "recipes" or path.name == "test_contract_sharded.py"
