"""Matrices in blocks: each block is updated as a matrix of its own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian
from _reference import rotations as ref

import optax_matrix as om
from optax_matrix.linalg import polar_svd
from optax_matrix.transforms import in_blocks
from optax_matrix.transforms.blocks import cut, joined

# Sides: divided by the size, with a remainder, equal to it, below it.
SHAPES = [(6, 9), (7, 5), (2, 8), (3, 3), (8, 2), (1, 7), (2, 3)]
OUT_IN = om.MatrixDimensionNumbers(1, 0)


def pieces(x, size):
    """The blocks of the last two axes by position, in NumPy."""
    m, n = x.shape[-2:]
    starts = itertools.product(range(0, m, size), range(0, n, size))
    return {f"{i},{j}": x[..., i : i + size, j : j + size] for i, j in starts}


def assembled(blocks, shape):
    out = np.zeros(shape)
    for name, x in blocks.items():
        i, j = map(int, name.split(","))
        out[..., i : i + x.shape[-2], j : j + x.shape[-1]] = x
    return out


def run(tx, grads):
    update, state = jax.jit(tx.update), tx.init(grads[0])
    out = []
    for g in grads:
        updates, state = update(g, state)
        out.append(jax.tree.map(np.asarray, updates))
    return out, state


@pytest.mark.quick("3-shape3", "3-shape6", "3-shape0")
@pytest.mark.daily("3", "4-shape0", "4-shape3", "1-shape0", "1-shape5")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_cut_and_joined(shape, size):
    x = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    stacks = cut(size, jnp.asarray(x))
    if max(shape) <= size:
        assert stacks.shape == x.shape
        return
    assert all(s.shape[0] == 2 and max(s.shape[2:]) <= size for s in stacks.values())
    found = [np.asarray(s[:, i]) for s in stacks.values() for i in range(s.shape[1])]
    key = lambda block: block.ravel().tolist()
    wanted = sorted(map(key, pieces(x, size).values()))
    assert sorted(map(key, found)) == wanted
    np.testing.assert_array_equal(joined(size, stacks, x.shape), x)


def directions():
    """Blocks and recipes, as functions of the block size."""
    kl = om.transforms.scale_by_spectrum
    return {
        "shampoo": lambda size: om.precondition(block_size=size, update_interval=2),
        "shampoo-in": lambda size: om.precondition(block_size=size, side="in"),
        "shampoo-averages": lambda size: om.precondition(
            block_size=size, decay=0.9, bias_correction=True, momentum=om.momentum(0.9)
        ),
        "soap": lambda size: in_blocks(
            om.in_eigenbasis(
                om.scale_by_second_moment(0.9),
                momentum=om.momentum(0.9),
                update_interval=2,
            ),
            size,
        ),
        "kl": lambda size: in_blocks(om.in_eigenbasis(kl(), "kl", side="out"), size),
    }


SLOW = pytest.mark.slow


@pytest.mark.broad
@pytest.mark.parametrize(
    "name",
    [n if n == "shampoo" else pytest.param(n, marks=SLOW) for n in directions()],
)
def test_a_matrix_in_blocks_equals_leaves_that_are_those_blocks(name):
    make = directions()[name]
    grads = [
        {f"{m}x{n}": np.float32(gaussian(2, m, n, seed=9 * t + m))}
        for t in range(4)
        for m, n in [(7, 4)]
    ]
    grads[0] = jax.tree.map(lambda x: jnp.asarray(x).at[1, :3].set(0), grads[0])
    got, _ = run(make(3), grads)
    leaves = [
        {p: x for g in tree.values() for p, x in pieces(g, 3).items()} for tree in grads
    ]
    want, _ = run(make(None), leaves)
    for t, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        (x,) = ours.values()
        whole = assembled(theirs, x.shape)
        size = np.abs(whole).max()
        np.testing.assert_allclose(x, whole, atol=1e-4 * size, err_msg=str(t))


def block_shampoo(gradients, size, eps):
    """Shampoo of every block, in NumPy and float64."""
    sums, out = {}, []
    for g in gradients:
        found = {}
        for name, block in pieces(g, size).items():
            left, right = sums.get(name, (0, 0))
            left, right = left + block @ block.T, right + block.T @ block
            sums[name] = left, right
            powers = []
            for a in (left, right):
                w, q = np.linalg.eigh(a)
                w = np.maximum(w, 0) + eps * w[-1]
                powers.append((q * w**-0.25) @ q.T)
            found[name] = powers[0] @ block @ powers[1]
        out.append(assembled(found, g.shape))
    return out


@pytest.mark.broad
@pytest.mark.daily("eigh", "shape1-4-newton")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("method", ["newton", "eigh"])
@pytest.mark.parametrize(("shape", "size"), [((7, 10), 4), ((8, 4), 4), ((3, 9), 2)])
def test_shampoo_in_blocks_follows_its_restatement(shape, size, method):
    stream = gaussian(4, *shape)
    tx = om.scale_by_shampoo(
        block_size=size, method=method, eps=1e-4, dimension_numbers={"w": OUT_IN}
    )
    got, state = run(tx, [{"w": jnp.asarray(g)} for g in stream])
    want = block_shampoo(stream, size, 1e-4)
    for ours, theirs in zip(got, want, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours["w"], theirs, rtol=0, atol=2e-4 * scale)
    sizes = {x.shape[-1] for x in jax.tree.leaves(state.inner_state.gram)}
    assert max(sizes) == size


def damped_eighth_root(a):
    damped = a + 1e-3 * np.linalg.eigvalsh(a)[-1] * np.eye(len(a))
    return ref.symmetric_power(damped, -1 / 8)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_mousse_in_blocks_has_the_polar_factor_of_the_whole_matrix():
    stream = gaussian(3, 7, 6)
    tx = om.scale_by_mousse(
        block_size=4,
        method="eigh",
        polar=polar_svd,
        scaling="none",
        update_interval=1,
        b1=0.0,
        b2=0.5,
        eps=1e-3,
        dimension_numbers={"w": OUT_IN},
    )
    got, _ = run(tx, [{"w": jnp.asarray(g)} for g in stream])
    averages = {}
    for g, ours in zip(stream, got, strict=True):
        roots = {}
        for name, block in pieces(g, 4).items():
            old = averages.get(name, (0, 0))
            new = (block @ block.T, block.T @ block)
            averages[name] = [(a + b) / 2 for a, b in zip(old, new, strict=True)]
            roots[name] = [damped_eighth_root(a) for a in averages[name]]
        whiten = lambda x, roots=roots: assembled(
            {n: roots[n][0] @ y @ roots[n][1] for n, y in pieces(x, 4).items()}, x.shape
        )
        u, _, vt = np.linalg.svd(whiten(g), full_matrices=False)
        want = whiten(u @ vt)
        want *= np.linalg.norm(u @ vt) / np.linalg.norm(want)
        np.testing.assert_allclose(ours["w"], want, rtol=0, atol=1e-9)


@pytest.mark.broad
@pytest.mark.daily("shampoo", "soap")
@pytest.mark.parametrize("name", ["shampoo", "mousse", "soap", "kl_shampoo", "splus"])
def test_a_block_as_large_as_the_matrix_changes_nothing(name):
    grads = [{"w": np.float32(gaussian(5, 8, seed=t))} for t in range(3)]
    make = getattr(om, f"scale_by_{name}")
    want, state = run(make(), grads)
    got, same = run(make(block_size=8), grads)
    jax.tree.map(np.testing.assert_array_equal, (got, same), (want, state))


@pytest.mark.parametrize("name", ["shampoo", "mousse", "soap", "kl_shampoo", "splus"])
def test_longer_sides_are_left_out_or_cut(name):
    params = {"w": jax.ShapeDtypeStruct((6, 20), jnp.float32)}

    def sides(**options):
        tx = getattr(om, f"scale_by_{name}")(**options)
        state = jax.eval_shape(tx.init, params).inner_state
        state = state[0] if isinstance(state, tuple) and name == "splus" else state
        state = state[0] if name == "mousse" else state
        return {x.shape[-1] for x in jax.tree.leaves(state.gram)} - {1}

    assert sides(max_dim=None) == {6, 20}
    assert sides(max_dim=10) == {6}
    assert sides(max_dim=5) == set()
    assert sides(max_dim=10, block_size=8) == {4, 6, 8}
    assert sides(max_dim=4, block_size=8) == set()


@pytest.mark.parametrize("name", ["shampoo", "mousse"])
def test_state_per_weight(name):
    """4096 x 16384: sums, or averages and roots, and a momentum."""
    params = {"w": jax.ShapeDtypeStruct((4096, 16384), jnp.float32)}

    def per_weight(**options):
        tx = getattr(om, f"scale_by_{name}")(**options)
        leaves = jax.tree.leaves(jax.eval_shape(tx.init, params).inner_state)
        return sum(x.size for x in leaves) / 2**26

    whole, blocks = {"shampoo": (4.25, 2.0), "mousse": (9.5, 5.0)}[name]
    assert per_weight() == pytest.approx(whole, rel=1e-5)
    assert per_weight(block_size=1024) == pytest.approx(blocks, rel=1e-5)


@pytest.mark.broad
def test_parameters_are_cut_too():
    tx = in_blocks(optax.add_decayed_weights(0.5), 2)
    w = {"w": np.float32(gaussian(3, 5))}
    zeros = jax.tree.map(jnp.zeros_like, w)
    updates, _ = tx.update(zeros, tx.init(w), w)
    np.testing.assert_array_equal(updates["w"], w["w"] / 2)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_sizes_that_are_no_positive_ints_are_refused(size):
    for make in (om.precondition, om.shampoo, om.mousse, om.soap, om.splus):
        arguments = () if make is om.precondition else (1e-3,)
        with pytest.raises(ValueError, match="`block_size` must be a positive int"):
            make(*arguments, block_size=size)
    with pytest.raises(ValueError, match="`block_size` must be a positive int"):
        in_blocks(optax.identity(), size)
