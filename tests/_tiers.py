"""Which recipes and cases stand for all others where trying every one takes too long.

A test is `broad` or `slow` by its mark. Of a parametrized test, `quick` gives the cases
that `make test-fast` tries, `daily` those of `make test`; the others are broad or slow.

`make test-fast` tries what is quick of the contract on QUICK. `make test` tries that
and `owners` on (most of) KINDS, one recipe of each kind of state, and what is broad of
the contract on DAILY. `make test-slow` does the rest, and all of the contract on the
variants of recipes, so a new recipe of a known kind belongs in none of these sets.

All of these run with most of XLA's optimizations off, as compiling is most of the time.
`make test-optimized`, a part of `make test-slow`, runs the trajectories of all recipes
and their contract on sharded parameters once more, with the optimizations on.
"""

import os

import pytest

# Of this run; `_setup` sets the variable where the environment has none.
OPTIMIZED = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "0"

QUICK = {"muon"}
KINDS = QUICK | {
    "racs",
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
    *("in_eigenbasis", "project_", "scale_by_tracked", "whiten"),
    *("quantize_state", "orthogonalize-gram", "orthogonalize-polar_svd"),
)


def tier_of_file(path):
    """The mark of all tests of a file, or None where each has its own."""
    if path.name in FRAMEWORKS or path.parent.name in HARDLY_EVER:
        return "slow"
    return "broad" if path.parent.name in RARELY else None


def tiered(names):
    """Names for `parametrize`: QUICK as they are, DAILY ones broad, others slow."""
    mark = lambda name: pytest.mark.broad if name in DAILY else pytest.mark.slow
    return [n if n in QUICK else pytest.param(n, marks=mark(n)) for n in names]


def spread(items, *, whole):
    """Marks cases that `quick` or `daily` do not name by parts of their ids.

    Where whole files were collected, every part has to be that of a case.
    """
    used = {}
    for item in items:
        for name, rest in ("quick", pytest.mark.broad), ("daily", pytest.mark.slow):
            if chosen := item.get_closest_marker(name):
                found = {x: f"-{x}-" in f"-{item.callspec.id}-" for x in chosen.args}
                if not any(found.values()):
                    item.add_marker(rest)
                for part, is_there in found.items():
                    key = item.nodeid.partition("[")[0], part
                    used[key] = used.get(key, False) or is_there
    unused = [key for key, is_there in used.items() if not is_there]
    if whole and unused:
        raise pytest.UsageError(f"no case has these parts in its id: {unused}")


def is_optimized(path):
    """Whether `make test-optimized` runs the tests of this file."""
    return path.parent.name == "recipes" or path.name == "test_contract_sharded.py"
