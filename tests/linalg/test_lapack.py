"""Decompositions on the CPU: no lock-up, JAX's own numbers, on meshes too."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from optax_matrix.linalg import lapack
from tests._meshes import KINDS

# Stacks that nothing orders, decomposed at the same time.
MANY = """
import jax
from optax_matrix.linalg import lapack
key = jax.random.key(0)
stacks = [jax.random.normal(key, (24, 128, 128)) for _ in range(6)]
grams = [x @ x.mT for x in stacks]
for name in ("qr", "svd", "singular_values", "eigh", "cholesky"):
    step = jax.jit(lambda stacks: [getattr(lapack, name)(x) for x in stacks])
    for _ in range(3):
        factors = jax.block_until_ready(step(grams))
for kernel in (lapack.solve_lower, lapack.solve):
    solve = jax.jit(lambda ls, bs: [kernel(*x) for x in zip(ls, bs)])
    for _ in range(3):
        jax.block_until_ready(solve(factors, stacks))
"""
SHAPES = [(5, 3), (3, 5), (4, 5, 3), (2, 2, 3, 5), (0, 4, 3)]


@pytest.mark.slow
def test_many_stacks_do_not_lock_up_the_cpu():
    subprocess.run([sys.executable, "-c", MANY], check=True, timeout=300)


@pytest.mark.daily("shape0", "shape2", "shape4")
@pytest.mark.broad
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_the_decompositions_of_jax(shape):
    x = jax.random.normal(jax.random.key(0), shape)
    gram = x @ x.mT + jnp.eye(shape[-2])
    l = jnp.linalg.cholesky(gram)

    @jax.jit
    def ours(x, gram, l):
        solved = [lapack.solve_lower(l, x, transpose=t) for t in (False, True)]
        spectral = *lapack.svd(x), lapack.singular_values(x), *lapack.eigh(gram)
        solved.append(lapack.solve(gram, x))
        return *lapack.qr(x), *spectral, lapack.cholesky(gram), *solved

    svd = jnp.linalg.svd(x, full_matrices=False)
    solved = [jnp.linalg.solve(a, x) for a in (l, l.mT, gram)]
    theirs = *jnp.linalg.qr(x), *svd, svd[1], *jnp.linalg.eigh(gram), l, *solved
    for a, b in zip(ours(x, gram, l), theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_stack_on_a_mesh():
    # On explicit axes JAX's own decompositions raise; `on_matrices` makes axes Auto.
    mesh = jax.make_mesh((8,), ("data",), axis_types=(KINDS["auto"],))
    x = jax.random.normal(jax.random.key(0), (8, 3, 5))
    gram = x @ x.mT
    on_mesh = jax.device_put(gram, NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        l = np.asarray(jax.jit(lapack.cholesky)(on_mesh))
    np.testing.assert_allclose(l @ l.swapaxes(1, 2), gram, atol=1e-5)
