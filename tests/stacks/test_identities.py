"""Two paths of one crc32 are told apart by nothing, so they are refused."""

import jax
import optax
import pytest
from _matrices import ones, zeros

import optax_matrix as om
from optax_matrix.stacks.identities import paths_by_checksum

PARAMS = {"plumless": ones(4, 8), "buckeroo": zeros(4, 8)}
MESSAGE = "crc32 of 'buckeroo' and 'plumless' is the same"


@pytest.mark.parametrize(
    "use",
    {
        "on_matrices": lambda p: om.on_matrices(optax.trace(0.9)).init(p),
        "muon": lambda p: om.muon(0.02).init(p),
        "poet": lambda p: jax.eval_shape(om.poet(1e-3, block=4).init, p),
        "initialize": lambda p: om.initialize_matrices(p, jax.random.key(0)),
        "reparameterize": lambda p: om.reparameterize(block=4).split(p),
        "to_portable": lambda p: om.to_portable(optax.adam(1e-3).init(p), p),
        "from": lambda p: om.from_portable({}, optax.adam(1e-3).init(p), p),
    }.items(),
    ids=lambda item: item[0],
)
def test_refused_in_words(use):
    with pytest.raises(ValueError, match=MESSAGE):
        use[1](PARAMS)


def test_also_beside_a_leaf_that_is_no_matrix():
    params = {"plumless": ones(4, 8), "buckeroo": ones(8)}
    with pytest.raises(ValueError, match=MESSAGE):
        om.muon(0.02).init(params)


def test_paths_by_checksum():
    assert list(paths_by_checksum(["a", "b", "a"]).values()) == ["a", "b"]
