"""Two paths of one crc32 are told apart by nothing, so they are refused."""

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_matrix as om
from optax_matrix.stacks.checksums import paths_by_checksum

PARAMS = {"plumless": jnp.ones((4, 8)), "buckeroo": jnp.zeros((4, 8))}
MESSAGE = "crc32 of 'buckeroo' and 'plumless' is the same"


@pytest.mark.parametrize(
    "use",
    [
        lambda p: om.on_matrices(optax.trace(0.9)).init(p),
        lambda p: om.muon(0.02).init(p),
        lambda p: jax.eval_shape(om.poet(1e-3, block=4).init, p),
        lambda p: om.initialize_matrices(p, jax.random.key(0)),
        lambda p: om.reparameterize(block=4).split(p),
        lambda p: om.to_portable(optax.adam(1e-3).init(p), p),
        lambda p: om.from_portable({}, optax.adam(1e-3).init(p), p),
    ],
    ids="on_matrices muon poet initialize reparameterize to_portable from".split(),
)
def test_refused_in_words(use):
    with pytest.raises(ValueError, match=MESSAGE):
        use(PARAMS)
    # A vector is a parameter with a path, too.
    if "initialize" not in str(use):
        use({"plumless": PARAMS["plumless"], "other": jnp.ones(8)})


def test_also_beside_a_leaf_that_is_no_matrix():
    params = {"plumless": jnp.ones((4, 8)), "buckeroo": jnp.ones(8)}
    with pytest.raises(ValueError, match=MESSAGE):
        om.muon(0.02).init(params)


def test_paths_by_checksum():
    assert list(paths_by_checksum(["a", "b", "a"]).values()) == ["a", "b"]
