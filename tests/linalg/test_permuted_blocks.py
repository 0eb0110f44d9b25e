"""Primitives: permutations and blocks on both sides, and nothing larger."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, zeros

from optax_matrix.linalg import cayley, cayley_neumann, to_skew
from optax_matrix.linalg.permuted_blocks import (
    draw_permutations,
    materialize,
    permute,
    recover_frame,
    unpermute,
)
from optax_matrix.linalg.skew import block_grid, free_entries, triangle_size

SHAPE = {"out": 10, "in": 7}
GRIDS = {
    "block": ("block", 4),  # A remainder on both sides.
    "divides": ("block", 1),
    "one block": ("block", 64),
    "full": ("full", 0.5),
    "full int": ("full", 3),
}
IDS = np.arange(6, dtype=np.uint32).reshape(3, 2)
draw_of = jax.jit(draw_permutations, static_argnums=1)


def primitives(variant, block, size=0.3, orthogonal=cayley, seed=0, sides=SHAPE):
    """Blocks and permutations of three matrices, in float64."""
    blocks, perms = {}, {}
    for i, side in enumerate(sides):
        n = SHAPE[side]
        k, b = block_grid(n, block, variant)
        v = size * gaussian(3, k, triangle_size(b), seed=seed + i)
        blocks[side] = orthogonal(to_skew(jnp.asarray(v * free_entries(n, k, b)), b))
        perms[side] = draw_of(IDS, n, seed, i)
    return blocks, perms


@jax.jit
def applied(w0, blocks, perms):
    return materialize(permute(w0, perms), blocks, perms)


def dense(g, perm):
    """R of one side, as the paper writes it: n x n."""
    n, (k, b) = len(perm), g.shape[:2]
    diagonal = np.eye(max(n, k * b))
    for i in range(k):
        diagonal[i * b : (i + 1) * b, i * b : (i + 1) * b] = g[i]
    psi = np.eye(n)[perm]
    return psi.T @ diagonal[:n, :n] @ psi


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grid", GRIDS)
def test_materialize_is_the_dense_product(grid):
    blocks, perms = primitives(*GRIDS[grid])
    w0 = gaussian(3, 10, 7)
    got = applied(jnp.asarray(w0), blocks, perms)
    for i in range(3):
        out, in_ = (
            dense(np.asarray(blocks[s][i]), np.asarray(perms[s][i])) for s in SHAPE
        )
        np.testing.assert_allclose(got[i], out @ w0[i] @ in_.T, atol=1e-13)
        # Also where a block sticks out: the whole is orthogonal.
        np.testing.assert_allclose(out @ out.T, np.eye(10), atol=1e-13)
        np.testing.assert_allclose(in_ @ in_.T, np.eye(7), atol=1e-13)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("sides", [("in",), ("out",), ()])
def test_absent_sides_stay(sides):
    blocks, perms = primitives("block", 4, sides=sides)
    w0 = gaussian(3, 10, 7)
    got = np.asarray(applied(jnp.asarray(w0), blocks, perms))
    turned = lambda x: np.swapaxes(x, -1, -2)
    side = {"in": lambda x: turned(x) @ x, "out": lambda x: x @ turned(x)}
    # What acts on one side only keeps the Gram matrix of the other.
    for name, gram in side.items():
        kept = np.allclose(gram(got), gram(w0), atol=1e-12)
        assert kept == (name not in sides)


@pytest.mark.daily("block")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("grid", ["block", "full"])
@pytest.mark.broad
def test_recover_frame_inverts_blocks_that_are_not_quite_orthogonal(grid):
    blocks, perms = primitives(*GRIDS[grid], size=0.2, orthogonal=cayley_neumann)
    error = blocks["in"] @ blocks["in"].mT - np.eye(blocks["in"].shape[-1])
    assert np.abs(error).max() > 1e-6
    frame = jnp.asarray(gaussian(3, 10, 7))
    there_and_back = lambda f, *args: recover_frame(materialize(f, *args), *args)
    back = jax.jit(there_and_back)(frame, blocks, perms)
    np.testing.assert_allclose(back, frame, atol=1e-12)


@pytest.mark.slow
def test_unpermute_inverts_permute():
    _, perms = primitives("block", 4)
    x = jnp.asarray(gaussian(3, 10, 7), jnp.float32)
    y = permute(x, perms)
    assert bool(jnp.any(y != x))
    np.testing.assert_array_equal(
        y[1, 2, 3], x[1, perms["out"][1, 2], perms["in"][1, 3]]
    )
    np.testing.assert_array_equal(unpermute(y, perms), x)


@pytest.mark.broad
def test_draws_are_permutations_and_depend_on_everything():
    drawn = jax.jit(lambda ids, *numbers: draw_permutations(ids, 30, *numbers))
    draw = lambda *numbers, ids=IDS: np.asarray(drawn(ids, *numbers))
    first = draw(0, 1)
    assert first.dtype == np.int32
    np.testing.assert_array_equal(np.sort(first), np.tile(np.arange(30), (3, 1)))
    others = [draw(0, 2), draw(1, 1), draw(0), draw(0, 1, ids=IDS + 1)]
    for other in (*others, first[[1, 2, 0]]):
        assert (other != first).any(axis=-1).all()
    np.testing.assert_array_equal(draw(0, 1, ids=IDS[[2, 0]]), first[[2, 0]])


def test_blocks_cover_a_dimension_once():
    assert block_grid(512, 64, "block") == (8, 64)
    assert block_grid(100, 64, "block") == (2, 64)
    assert block_grid(100, 0.25, "full") == (1, 25)
    assert block_grid(100, 0.29, "full") == (1, 29)  # 28.999999999999996 in float64.
    assert block_grid(1, 0.5, "full") == block_grid(1, 8, "block") == (1, 1)
    # Trainable: 64 * 63 / 2 and 36 * 35 / 2.
    assert free_entries(100, 2, 64).sum(-1).tolist() == [2016, 630]


def sizes_in(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (math.prod(v.aval.shape) for v in eqn.outvars)
        yield from (
            (dim, v.aval.shape.count(dim)) for v in eqn.outvars for dim in v.aval.shape
        )
        for sub in jax.tree.leaves(eqn.params):
            if hasattr(sub, "eqns"):
                yield from sizes_in(sub)


@pytest.mark.parametrize("variant", ["block", "full"])
def test_no_matrix_of_a_whole_side_is_formed(variant):
    m, n, b = 96, 81, 8
    grids = {"out": block_grid(m, b, variant), "in": block_grid(n, b, variant)}
    v = {s: zeros(k, triangle_size(b)) for s, (k, b) in grids.items()}
    perms = {"out": jnp.arange(m), "in": jnp.arange(n)}

    def loss(v, frame):
        blocks = {s: cayley_neumann(to_skew(x, b)) for s, x in v.items()}
        return jnp.sum(materialize(frame, blocks, perms) ** 2)

    jaxpr = jax.make_jaxpr(jax.grad(loss))(v, zeros(m, n))
    found = list(sizes_in(jaxpr.jaxpr))
    assert (m, 1) in found
    assert (m, 2) not in found
    assert (n, 2) not in found
    # The largest thing is the matrix itself, its last block filled up.
    assert max(x for x in found if isinstance(x, int)) <= m * 88
