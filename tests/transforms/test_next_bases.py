"""Bases that begin with the first gradient and take a step at every other one."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _identities import identified
from _matrices import gaussian

import optax_matrix as om
from optax_matrix._surroundings import within
from optax_matrix.transforms.low_rank._next_bases import next_bases

SHAPE = (3, 4, 5)


def found(s):
    """A first basis that shows for which matrix it is."""
    entry = jax.vmap(lambda key: jax.random.uniform(key, minval=1.0, maxval=2.0))(s.key)
    return jnp.broadcast_to(entry[:, None, None], (*s.gradient.shape[:-1], s.rank))


def step(x, u, more):
    assert np.all(np.any(u != 0, axis=(-2, -1)))  # A QR of zeros would be NaN.
    return 2 * u + more + 0 * x[..., :1]


@pytest.mark.broad
def test_first_ones_and_steps_matrix_by_matrix():
    """The second matrix has no gradient at first, the third one keeps its state."""
    x = np.float32(gaussian(*SHAPE, seed=1))
    first = x * np.float32([1, 0, 1])[:, None, None]
    more = {"w": jnp.ones((3, 1, 1))}
    ids = {"w": jnp.uint32([[1], [2], [3]]), "of another stack": None}
    layout = types.SimpleNamespace(ids=ids)
    grads = [{"w": jnp.asarray(g)} for g in (first, x, x)]
    vectors, path = {"w": jnp.zeros((3, 4, 2))}, []
    keeps = [({"w": jnp.asarray([False, False, t == 1])},) for t in range(3)]
    for g, kept in zip(grads, keeps, strict=True):
        with within(keeps=kept, layout=layout):
            vectors = next_bases(step, g, vectors, more, first=found)
        path.append(np.asarray(vectors["w"]))
    own = [np.unique(u) for u in path[1]]
    a, b, c = path[0][0, 0, 0], own[1].item(), path[0][2, 0, 0]
    assert len({a, b, c}) == 3
    np.testing.assert_array_equal(path[0][1], 0)
    np.testing.assert_allclose(own, [[2 * a + 1], [b], [c]], rtol=1e-6)
    want = [4 * a + 3, 2 * b + 1, 2 * c + 1]
    np.testing.assert_allclose(path[2][:, 0, 0], want, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        om.transforms.scale_by_tracked_adam,
        lambda **options: om.project_low_rank(optax.identity(), **options),
        om.transforms.orthogonalize_low_rank,
    ],
)
def test_identities_may_be_those_of_more_stacks(make):
    """As for a part of the stacks of a layout, under `optax.partition`."""
    ids = {name: jnp.zeros((2, 1), jnp.uint32) for name in "ab"}
    tx, stacks = identified(make(rank=2), ids), {"a": jnp.ones((2, 3, 4))}
    jax.eval_shape(lambda x: tx.update(x, tx.init(x)), stacks)
