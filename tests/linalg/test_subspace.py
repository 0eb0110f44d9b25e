"""Leading vectors, subspace iteration and random complements."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, orthonormal, shapes
from _reference.low_rank import subspace_iteration

from optax_matrix import linalg
from optax_matrix.linalg import complement

KEY = jax.random.key(5)
EPS = float(np.finfo(np.float32).eps)
# Sums of up to 20 rounded products, and columns that are rounded themselves.
ORTHONORMAL = 20 * EPS


def projector(u):
    return u @ np.swapaxes(u, -1, -2)


def assert_orthonormal(u, atol=ORTHONORMAL):
    gram = np.swapaxes(u, -1, -2) @ u
    eye = np.broadcast_to(np.eye(u.shape[-1]), gram.shape)
    np.testing.assert_allclose(gram, eye, atol=atol)


@functools.lru_cache(None, typed=True)
def jitted(name, *static):
    f = getattr(complement if "complement" in name else linalg, name)
    return jax.jit(lambda x, *rest: f(x, *static, *rest))


@pytest.mark.broad
@pytest.mark.parametrize("name", ["wide", "tall", "batched"])
def test_exact_vectors_are_numpys(name):
    x = shapes()[name]
    got = np.asarray(jitted("left_vectors", 3)(jnp.asarray(x, jnp.float32)))
    want = np.linalg.svd(x, full_matrices=False)[0][..., :3]
    # Vectors turn by the rounding over the gap of the values, here at least 1%.
    np.testing.assert_allclose(projector(got), projector(want), atol=1e-4)
    largest = np.take_along_axis(got, np.abs(got).argmax(-2)[..., None, :], -2)
    assert (largest > 0).all()
    assert_orthonormal(got)


@pytest.mark.broad
def test_randomized_vectors_find_the_leading_subspace():
    s = [10, 8, 6, 1, 0.5, 0.2, 0.1, 0.05]
    x = np.stack([matrix_with_singular_values(s, 12, 20, seed) for seed in (1, 2)])
    keys = jax.random.split(KEY, 2)
    got = np.asarray(jitted("randomized_left_vectors", 3)(jnp.float32(x), keys))
    want = np.asarray(jitted("left_vectors", 3)(jnp.float32(x)))
    assert_orthonormal(got)
    # Oversampled by 8 all of the range is there: exact but for rounding.
    np.testing.assert_allclose(np.abs(got), np.abs(want), atol=2e-5)
    # Without: what is left of the rest after three products is (1/6)^6 = 2e-5 times
    # the ratio of the random parts.
    bare = np.asarray(jitted("range_finder", 3)(jnp.float32(x), keys))
    np.testing.assert_allclose(projector(bare), projector(want), atol=1e-2)
    assert np.abs(projector(bare) - projector(want)).max() > 1e-7
    one = np.asarray(jitted("range_finder", 3)(jnp.float32(x[1]), keys[1]))
    np.testing.assert_allclose(one, bare[1], atol=1e-6)  # Its own key, its own draw.


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["zero", "rank-one", "1e-20", "1e20"])
def test_vectors_of_degenerate_matrices_are_orthonormal(kind):
    x = gaussian(12, 20, seed=1)
    x = {"zero": 0 * x, "rank-one": np.outer(x[:, 0], x[0])}.get(kind, x)
    x = jnp.float32(x) * (float(kind) if kind[0] == "1" else 1)
    for u in (
        jitted("randomized_left_vectors", 3)(x, KEY),
        jitted("left_vectors", 3)(x),
    ):
        assert_orthonormal(np.asarray(u, np.float64))


@pytest.mark.usefixtures("x64")
@pytest.mark.broad
def test_one_step_of_subspace_iteration_equals_that_of_the_formed_matrix():
    u, x = orthonormal(7, 3), gaussian(7, 10, seed=1)
    a = gaussian(3, 3, seed=2)
    a = a @ a.T
    want_values, want = subspace_iteration(u @ a @ u.T + x @ x.T, u)
    step = jax.jit(linalg.subspace_iteration)
    values, got = step(jnp.asarray(u), jnp.asarray(a), jnp.asarray(x))
    np.testing.assert_allclose(values, want_values, rtol=1e-12)
    assert (np.diff(values) < 0).all()
    np.testing.assert_allclose(np.abs(got), np.abs(want), atol=1e-12)
    untracked = linalg.subspace_iteration(jnp.asarray(u), None, jnp.asarray(x))
    want_values, want = subspace_iteration(x @ x.T, u)
    np.testing.assert_allclose(untracked[0], want_values, rtol=1e-12)
    # Columns need not be orthonormal: Q is what matters.
    skew = u @ (np.eye(3) + np.triu(np.ones((3, 3)), 1))
    want_values, _ = subspace_iteration(skew @ a @ skew.T + x @ x.T, skew)
    values, _ = step(jnp.asarray(skew), jnp.asarray(a), jnp.asarray(x))
    np.testing.assert_allclose(values, want_values, rtol=1e-11)


@pytest.mark.usefixtures("x64")
@pytest.mark.broad
def test_every_matrix_takes_its_own_number_of_steps():
    u, a, x = orthonormal(7, 3), np.diag([3.0, 2.0, 1.0]), gaussian(7, 10, seed=1)
    q, v = u @ a @ u.T + x @ x.T, u
    want = []
    for _ in range(3):
        want.append(subspace_iteration(q, v)[1])
        v = np.linalg.qr(q @ v)[0]
    both = lambda y: jnp.asarray(np.stack([y, y]))
    step = jax.jit(
        lambda k: linalg.subspace_iteration(*map(both, (u, a, x)), iterations=k)[1]
    )
    got = np.abs(np.asarray(step(jnp.array([1, 3]))))
    np.testing.assert_allclose(got, np.abs([want[0], want[2]]), atol=1e-12)


@pytest.mark.broad
def test_complements_are_orthonormal_and_orthogonal():
    u = jnp.float32(np.stack([orthonormal(12, 7, seed) for seed in (1, 2)]))
    keys = jax.random.split(KEY, 2)
    for name in ("complement_columns", "complement_subspace"):
        for count in (2, 5):
            s = np.asarray(jitted(name, count)(u, keys), np.float64)
            assert s.shape == (2, 12, count)
            assert_orthonormal(s)
            overlap = np.swapaxes(np.asarray(u, np.float64), -1, -2) @ s
            np.testing.assert_allclose(overlap, 0, atol=ORTHONORMAL)
        # All of it: the complement itself.
        whole = projector(np.asarray(u, np.float64)) + projector(s)
        np.testing.assert_allclose(whole[0], np.eye(12), atol=2 * ORTHONORMAL)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_columns_are_those_of_a_complete_qr():
    """Of LAPACK's, for bases that lie anywhere or along the axes, in any order."""
    m, r = 12, 5
    order = np.random.default_rng(0).permutation(m)
    axes = np.eye(m)[:, [2, 0, 7, 1, 4]]
    bases = [orthonormal(m, r), axes, -np.eye(m)[:, :r], np.eye(m)[:, r - 1 :: -1]]
    bases.append(np.linalg.qr(np.eye(m)[:, order[:r]] + orthonormal(m, r, 3) / 50)[0])
    bases.append(orthonormal(m, m - 1)[:, :r])
    keys = jax.random.split(KEY, len(bases))
    drawn = jitted("complement_columns", m - r)(jnp.asarray(np.stack(bases)), keys)
    for u, got in zip(bases, np.asarray(drawn), strict=True):
        want = np.linalg.qr(u, mode="complete")[0][:, r:]
        at = np.argmax(want.T @ got, axis=0)
        assert sorted(at) == list(range(m - r))
        np.testing.assert_allclose(got, want[:, at], atol=1e-14)
    # Those of the whole basis but for its first columns, which it contains.
    count = m - 2
    draw = jax.jit(
        functools.partial(complement.complement_columns, leading=2), static_argnums=1
    )
    got = np.asarray(draw(jnp.asarray(bases[0]), count, KEY))
    want = np.linalg.qr(bases[0], mode="complete")[0]
    want[:, :r] = bases[0]
    np.testing.assert_allclose(
        got, want[:, 2 + np.argmax(want[:, 2:].T @ got, 0)], atol=1e-14
    )


@pytest.mark.parametrize("kind", ["anywhere", "along axes"])
def test_columns_of_large_bases_are_orthonormal_and_along_axes(kind):
    m, r, count = 512, 128, 88
    start = np.eye(m)[:, ::-1][:, :r] if kind != "anywhere" else 0
    u = np.float32(np.linalg.qr(start + orthonormal(m, r) / 50)[0])
    s = np.asarray(jitted("complement_columns", count)(u, KEY), np.float64)
    assert_orthonormal(s)
    np.testing.assert_allclose(np.asarray(u, np.float64).T @ s, 0, atol=ORTHONORMAL)
    # Participation ratio of a random vector: m / 3.
    assert np.mean(1 / np.sum(s**4, axis=0)) < m / 20


@pytest.mark.broad
def test_columns_are_drawn_without_replacement_and_all_of_them_in_time():
    u = jnp.eye(6)[:, 2:4]
    draw = jax.jit(jax.vmap(lambda k: complement.complement_columns(u, 2, k)))
    drawn = np.abs(np.asarray(draw(jax.random.split(KEY, 200))))
    at = np.sort(drawn.argmax(-2), -1)
    assert set(at.ravel()) == {0, 1, 4, 5}
    assert (at[:, 0] < at[:, 1]).all()
    # Six pairs, 200 draws: 33 each, standard deviation 5.3.
    counts = np.unique(at, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert counts.min() > 12


@pytest.mark.broad
def test_random_subspaces_are_uniform():
    """The mean projector of a uniform subspace is a multiple of the complement's."""
    u = jnp.eye(4, 1)
    qr = linalg.qr_householder
    draw = jax.vmap(lambda k: complement.complement_subspace(u, 1, k, qr=qr))
    s = np.asarray(jax.jit(draw)(jax.random.split(KEY, 2000)))
    mean = projector(s).mean(0)
    # Standard deviations: 0.3 / sqrt(2000) = 0.007 on the diagonal, less beside it.
    np.testing.assert_allclose(mean, np.diag([0, 1, 1, 1]) / 3, atol=0.03)


def test_more_than_there_is_is_refused():
    with pytest.raises(ValueError, match="at most 2, the dimension"):
        jax.eval_shape(lambda: complement.complement_columns(jnp.eye(4)[:, :2], 3, KEY))
    with pytest.raises(ValueError, match="at most 2, the dimension"):
        jax.eval_shape(
            lambda: complement.complement_subspace(jnp.eye(4)[:, :2], 3, KEY)
        )
    with pytest.raises(ValueError, match="at most the shorter side"):
        jax.eval_shape(lambda: linalg.range_finder(jnp.ones((4, 6)), 5, KEY))


def test_overlap_carries_coordinates():
    old, new = np.float32(orthonormal(5, 2, 1)), np.float32(orthonormal(5, 2, 2))
    m = np.float32(gaussian(2, 3))
    got = np.asarray(jax.jit(linalg.overlap)(new, old)) @ m
    np.testing.assert_allclose(got, new.T @ (old @ m), atol=1e-6)


@pytest.mark.slow
def test_the_number_of_iterations_may_be_an_integer_of_numpy():
    """Only traced numbers are limited to `most`."""
    x = jnp.asarray(gaussian(5, 8, seed=1))
    start = jnp.eye(5)[:, :2]
    few, many, of_numpy = (
        linalg.subspace_iteration(start, None, x, iterations=n)[1]
        for n in (10, 30, np.int64(30))
    )
    assert jnp.abs(many - few).max() > 1e-6
    np.testing.assert_array_equal(of_numpy, many)
