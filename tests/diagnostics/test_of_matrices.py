"""Measures of every matrix of a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian
from _meshes import KINDS
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix import diagnostics as d

PARAMS = {
    "layers": {"2": {"up": {"kernel": jnp.float32(gaussian(4, 6, seed=1))}}},
    "stacked": {"kernel": jnp.float32(gaussian(3, 4, 6, seed=2))},
    "down": {"kernel": jnp.float32(gaussian(6, 4, seed=3)), "bias": jnp.ones(4)},
    "embed": {"embedding": jnp.float32(gaussian(9, 4, seed=4))},
}


def changed(before, after):
    return jnp.mean(before != after, axis=(-2, -1))


@pytest.mark.broad
def test_every_matrix_by_the_path_of_its_leaf():
    got = d.of_matrices(d.stable_rank, PARAMS)
    assert list(got) == ["down/kernel", "layers/2/up/kernel", "stacked/kernel"]
    want = d.stable_rank(PARAMS["stacked"]["kernel"])  # Transposition does not matter.
    np.testing.assert_allclose(got["stacked/kernel"], want, rtol=1e-6)
    want = d.stable_rank(PARAMS["down"]["kernel"])
    np.testing.assert_allclose(got["down/kernel"], [want], rtol=1e-6)


def test_rows_are_output_neurons():
    got = d.of_matrices(lambda w: jnp.linalg.norm(w, axis=-1), PARAMS)
    kernel = PARAMS["layers"]["2"]["up"]["kernel"]  # (in, out)
    want = jnp.linalg.norm(kernel, axis=0)[None]
    np.testing.assert_allclose(got["layers/2/up/kernel"], want, rtol=1e-6)
    flipped = om.matrices.by_path(
        numbers={"layers": om.MatrixDimensionNumbers(1, 0)}, include="layers"
    )
    got = d.of_matrices(
        lambda w: jnp.linalg.norm(w, axis=-1), PARAMS, dimension_numbers=flipped
    )
    want = jnp.linalg.norm(kernel, axis=1)[None]
    np.testing.assert_allclose(got["layers/2/up/kernel"], want, rtol=1e-6)


def test_several_measures_and_several_trees():
    after = jax.tree.map(lambda x: x.at[0].add(1.0), PARAMS)
    got = d.of_matrices(changed, PARAMS, after)
    np.testing.assert_allclose(got["down/kernel"], [1 / 6], rtol=1e-6)
    np.testing.assert_allclose(got["stacked/kernel"], [1, 0, 0])
    measures = {"score": d.alignment_score, "changed": changed}
    got = d.of_matrices(measures, PARAMS, PARAMS)["down/kernel"]
    assert list(got) == ["score", "changed"]
    np.testing.assert_allclose(got["score"], [1], rtol=1e-6)
    np.testing.assert_array_equal(got["changed"], [0])


@pytest.mark.broad
def test_heads_and_uneven_sections_are_matrices_of_their_own():
    params = {"qkv": jnp.float32(gaussian(4, 8)), "q": jnp.float32(gaussian(4, 6))}
    numbers = om.matrices.by_path(
        numbers={
            "qkv": om.MatrixDimensionNumbers(0, 1, output_sections=(4, 2, 2)),
            "q": om.MatrixDimensionNumbers(0, 1, output_sections=2),
        }
    )
    norm = lambda w: jnp.linalg.norm(w, axis=(-2, -1))
    got = d.of_matrices(norm, params, dimension_numbers=numbers)
    assert list(got) == ["q", "qkv", "qkv#1", "qkv#2"]
    parts = [params["qkv"][:, a:b] for a, b in [(0, 4), (4, 6), (6, 8)]]
    for name, part in zip(["qkv", "qkv#1", "qkv#2"], parts, strict=True):
        np.testing.assert_allclose(got[name], [jnp.linalg.norm(part)], rtol=1e-6)
    heads = [jnp.linalg.norm(params["q"][:, i : i + 3]) for i in (0, 3)]
    np.testing.assert_allclose(got["q"], heads, rtol=1e-6)


@pytest.mark.broad
def test_under_jit_and_of_shapes():
    want = d.of_matrices(d.norm_spread, PARAMS)
    got = jax.jit(lambda p: d.of_matrices(d.norm_spread, p))(PARAMS)
    for path in want:
        np.testing.assert_allclose(got[path], want[path], rtol=1e-6)
    shapes = jax.eval_shape(lambda p: d.of_matrices(d.singular_values, p), PARAMS)
    assert shapes["stacked/kernel"].shape == (3, 4)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_sharded_matrices(kind):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    params = {
        "a": gaussian(16, 8),
        "b": gaussian(8, 16, 8),
        "c": gaussian(16, 8, seed=1),
    }
    params = jax.tree.map(np.float32, params)
    want = d.of_matrices(d.orthogonality_error, params)
    specs = {"a": P("x", None), "b": P("x"), "c": P(None, "x")}
    with jax.set_mesh(mesh):
        sharded = {
            k: jax.device_put(x, NamedSharding(mesh, specs[k]))
            for k, x in params.items()
        }
        got = jax.jit(lambda p: d.of_matrices(d.orthogonality_error, p))(sharded)
        for path, values in want.items():
            np.testing.assert_allclose(got[path], values, rtol=1e-5)


def test_a_tree_without_matrices_has_no_results():
    assert d.of_matrices(d.stable_rank, {"bias": jnp.ones(3)}) == {}


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"`measure` must be a function"):
        d.of_matrices("stable_rank", PARAMS)
    with pytest.raises(ValueError, match=r"got no such leaf"):
        d.of_matrices(changed, PARAMS, {"down": PARAMS["down"]})
    other = {**PARAMS, "down": {"kernel": jnp.ones((2, 2))}}
    with pytest.raises(
        ValueError, match=r"'down/kernel' of shape \(6, 4\), got \(2, 2\)"
    ):
        d.of_matrices(changed, PARAMS, other)
    with pytest.raises(ValueError, match=r"one result per matrix"):
        d.of_matrices(jnp.sum, PARAMS)
