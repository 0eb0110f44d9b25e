"""Barriers in traced programs, and comparison bit for bit."""

import jax
import numpy as np


def barriers(f, *args):
    """Shapes of the operands of each barrier, in a traced program."""
    found = []
    is_program = lambda x: hasattr(getattr(x, "jaxpr", x), "eqns")

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "optimization_barrier":
                found.append([x.aval.shape for x in equation.invars])
            for inner in jax.tree.leaves(equation.params, is_leaf=is_program):
                if is_program(inner):
                    visit(getattr(inner, "jaxpr", inner))

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    return found


def assert_equal(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
