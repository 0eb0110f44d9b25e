"""The block of the guide for authors of blocks keeps to what the guide says."""

import doctest
import functools
import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix._surroundings import within

GUIDE = Path(__file__).parents[1] / ".docs" / "guides" / "blocks.rst"


@functools.cache
def block():
    """`in_eigenvectors`, from the lines before it is compared."""
    lines, _, _ = GUIDE.read_text().partition(">>> import numpy")
    test = doctest.DocTestParser().get_doctest(lines, {}, "guide", None, None)
    runner = doctest.DocTestRunner()
    assert not runner.run(test, clear_globs=False).failed
    return test.globs["in_eigenvectors"]


def test_functions_of_the_table_exist():
    named = re.findall(r"``(?:with )?(\w+)\.(\w+)\(", GUIDE.read_text())
    around = "optax_matrix._surroundings", "optax_matrix.transforms"
    of = dict.fromkeys(("keeping", "kernels", "joining", "layouts", "observation"), 0)
    ours = {pair for pair in named if pair[0] in of | {"turns": 1}}
    assert len(ours) >= 7
    for module, name in ours:
        package = around[module == "turns"]
        assert callable(getattr(importlib.import_module(f"{package}.{module}"), name))


@pytest.mark.broad
def test_what_is_known_around_it_reaches_it():
    """Of three matrices one keeps its state, and one is padding."""
    tx = block()(om.momentum(0.5), every=1)
    g = {"a": jnp.asarray(gaussian(3, 2, 4, seed=1), jnp.float32)}
    keeps, real = jnp.asarray([False, True, False]), jnp.asarray([True, True, False])
    found, pairs = {}, []

    def step(state):
        with within(keeps=({"a": keeps},), real={"a": real}, found=found, kept=pairs):
            return tx.update(g, state)

    state = tx.init(g)
    _, new = step(state)
    for array in (new.gram["a"], new.vectors["a"]):
        assert [bool(jnp.any(x != 0)) for x in array[:2]] == [True, False]
    assert not np.any(new.vectors["a"][2])
    assert {*found} == {"eigenvectors"}  # The momentum is that of another frame.
    held = [x for x, _ in pairs]
    for array in (new.gram["a"], new.vectors["a"]):
        assert any(array is x for x in held)


@pytest.mark.broad
def test_it_runs_in_on_matrices():
    tx = om.on_matrices(block()(om.scale_by_second_moment()))
    params = {"up": {"kernel": jnp.ones((4, 6), jnp.bfloat16), "bias": jnp.ones(6)}}
    new, _ = jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), params)
    assert new["up"]["kernel"].dtype == jnp.bfloat16
