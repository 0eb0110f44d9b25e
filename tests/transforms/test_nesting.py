"""Blocks in one another: what the inner one sees and reports is of its own matrices."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _identities import identified
from _matrices import gaussian, ones
from _steps import first_update

import optax_matrix as om
from optax_matrix.transforms import in_blocks, scale_by_adam_per_matrix, with_gradient
from optax_matrix.transforms.rotation import Sets
from optax_matrix.transforms.rotation._rotate_shared import rotate_shared

W = {"w": gaussian(2, 3, 5).astype(np.float32)}
SHARED = Sets({"w": np.zeros(2, np.int32)}, 1, {"w": ()})


def two_updates(tx, stacks=W):
    state, update = jax.jit(tx.init)(stacks), jax.jit(tx.update)
    for scale in (1.0, -0.5):
        new, state = update(optax.tree.scale(scale, stacks), state, stacks)
    return new


@pytest.mark.parametrize("side", ["out", "in"])
@pytest.mark.parametrize(
    "block",
    [
        lambda inner, side: om.precondition(inner, side=side),
        lambda inner, side: om.rotate(inner, side=side),
        lambda inner, side: rotate_shared(inner, SHARED, sides={"w": side}),
    ],
    ids=["precondition", "rotate", "rotate_shared"],
)
def test_the_input_itself_as_the_gradient_changes_nothing(block, side):
    tx = block(om.scale_by_second_moment(0.9), side)
    want, got = two_updates(tx), two_updates(with_gradient(tx))
    np.testing.assert_array_equal(got["w"], want["w"])


def test_each_block_is_a_matrix_of_its_own():
    clip = om.per_matrix(optax.clip_by_global_norm(1.0))
    x = {"kernel": ones(4, 5)}
    tx = om.on_matrices(in_blocks(clip, 2))
    new, _ = first_update(tx, x)
    blocks = new["kernel"][:2, :2], new["kernel"][2:, 2:4], new["kernel"][:2, 4:]
    norms = [np.linalg.norm(block) for block in blocks]
    assert norms == pytest.approx([1.0, 1.0, 1.0])


def test_each_matrix_has_its_own_gradient():
    inner = om.per_matrix(optax.with_extra_args_support(om.scale_by_second_moment(0.9)))
    want = two_updates(with_gradient(om.scale_by_second_moment(0.9)))
    got = two_updates(with_gradient(inner))
    np.testing.assert_allclose(got["w"], want["w"], rtol=1e-6)
    masked = optax.masked(om.per_matrix(optax.scale(2.0)), {"a": True, "b": False})
    both = {"a": W["w"], "b": W["w"]}
    np.testing.assert_array_equal(two_updates(masked, both)["b"], -0.5 * W["w"])


def shares(tx):
    params = {"kernel": np.float32(gaussian(6, 4))}
    tx = om.diagnostics.monitor(tx, ("outside_momentum",))
    _, state = first_update(tx, params, params)
    return om.diagnostics.read_monitor(state)["kernel"]["outside_momentum"]


@pytest.mark.slow
def test_a_momentum_in_another_frame_is_not_that_of_the_matrix():
    polar = optax.chain(om.momentum(0.9), om.orthogonalize(om.linalg.polar_svd))
    assert shares(om.on_matrices(polar)) < 1e-6
    chains = om.rotate(polar, side="out"), om.project_low_rank(polar, rank=2)
    for chain in (*chains, in_blocks(polar, 2)):
        with pytest.raises(ValueError, match="outside_momentum"):
            shares(om.on_matrices(chain))
    blocks = om.diagnostics.monitor(om.soap(1e-3, block_size=3), ("bounded",))
    with pytest.raises(ValueError, match="bounded"):
        blocks.init({"kernel": jnp.ones((6, 4))})


@pytest.mark.parametrize(
    "tx", [om.momentum(0.9, bias_correction=True), scale_by_adam_per_matrix()]
)
def test_numbers_of_each_matrix_are_for_matrices(tx):
    with pytest.raises(ValueError, match="must be matrices"):
        tx.init({"bias": ones(5)})


@pytest.mark.parametrize(
    "rule", [np.float64(2.0), lambda m, n: np.sqrt(m / n)], ids=["number", "function"]
)
def test_numbers_of_numpy_keep_the_dtype(rule):
    tx, x = om.scale_by_shape(rule), {"w": np.ones((4, 1), jnp.bfloat16)}
    assert first_update(tx, x)[0]["w"].dtype == jnp.bfloat16
    injected = om.inject_hyperparams(om.scale_by_shape)(rule)
    new, _ = first_update(injected, x)
    np.testing.assert_array_equal(new["w"], 2.0)


def test_identities_belong_to_names_in_any_order():
    ids = {"a": np.array([[1], [2]], np.uint32), "b": np.array([[3], [4]], np.uint32)}
    tx = om.project_low_rank(optax.identity(), rank=2, basis="gaussian")
    tx = identified(tx, ids)
    other = gaussian(2, 4, 6, seed=1).astype(np.float32)
    plain = two_updates(tx, {"a": W["w"], "b": other})
    turned = two_updates(tx, collections.OrderedDict(b=other, a=W["w"]))
    for name in "ab":
        np.testing.assert_allclose(turned[name], plain[name], rtol=1e-5, atol=1e-6)


def test_a_moment_in_blocks_cannot_be_carried():
    inner = in_blocks(om.momentum(0.9), 2)
    tx = om.project_low_rank(inner, rank=2, transport="carry", update_interval=1)
    with pytest.raises(
        ValueError, match="`transport` cannot tell how a moment in piec"
    ):
        two_updates(tx)
