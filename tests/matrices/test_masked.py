"""Recipes that do not see the whole tree, under `optax.partition` and `optax.masked`.

The leaves of another optimizer may tell how a matrix is read.
"""

import jax
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.matrices.wider import with_embeddings


def draw(*shape):
    return np.float32(gaussian(*shape))


TREES = {
    "PyTorch": {
        "fc1": {"weight": draw(32, 8), "bias": draw(32)},
        "fc2": {"weight": draw(8, 32), "bias": draw(8)},
    },
    "experts": {
        "proj": {"kernel": draw(8, 16)},
        "experts": {"up": draw(8, 16, 32), "down": draw(8, 32, 16)},
        "norm": {"scale": draw(16)},
    },
    "scanned": {
        "h": {
            "attn": {"query": {"kernel": draw(3, 8, 16), "bias": draw(3, 16)}},
            "norm": {"scale": draw(3, 8)},
        }
    },
}


def partitioned(numbers):
    parts = {"matrix": om.scale_by_muon(dimension_numbers=numbers)}
    parts["other"] = optax.sgd(1.0)
    return optax.partition(parts, om.matrices.label_params(numbers))


@pytest.mark.parametrize("name", TREES)
def test_what_the_rest_of_the_tree_may_tell_is_a_warning(name):
    params = TREES[name]
    with pytest.warns(om.matrices.DoubtfulMatrixWarning, match="are read without"):
        partitioned(None).init(params)


@pytest.mark.broad
@pytest.mark.parametrize("name", TREES)
def test_decided_once_matrices_are_those_of_the_whole_tree(name):
    params = TREES[name]
    whole = om.scale_by_muon()
    want, _ = jax.jit(whole.update)(params, whole.init(params), params)
    tx = partitioned(om.matrices.by_path()(params))
    got, _ = jax.jit(tx.update)(params, tx.init(params), params)
    labels = om.matrices.label_params()(params)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    pick = lambda tree: jax.tree.map(
        lambda x, label: x if label == "matrix" else None, tree, labels
    )
    jax.tree.map(close, pick(got), pick(want))


def test_usual_kernels_of_two_axes_are_no_doubt():
    params = {"up": {"kernel": draw(4, 8), "bias": draw(8)}}
    partitioned(None).init(params)


@pytest.mark.parametrize("name", ["PyTorch", "scanned"])
def test_poet_with_frozen_weights_reads_the_whole_tree(name):
    """Biases and norms are in the trainable part."""
    params = TREES[name]
    poet = om.reparameterize(block=4)

    @jax.jit
    def weights(params):
        parts = poet.split(params)
        merged = poet.merge(*parts)[:2]
        return poet.materialize(*parts), poet.materialize(*merged)

    for found in weights(params):
        same = lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5)
        jax.tree.map(same, found, params)


def test_in_the_full_model_vectors_are_no_matrices():
    params = {
        "embed": {"embedding": draw(40, 8)},
        "layers": {
            "up": {"kernel": draw(3, 8, 32), "bias": draw(3, 32)},
            "down": {"kernel": draw(3, 32, 8)},
            "norm": {"scale": draw(3, 8)},
            "moe": {"router": {"kernel": draw(3, 8, 4)}},
        },
    }
    numbers = with_embeddings(None)(params)
    assert numbers["embed"]["embedding"] is not None
    assert numbers["layers"]["norm"]["scale"] is None
    assert numbers["layers"]["up"]["bias"] is None
    assert numbers["layers"]["moe"]["router"]["kernel"] is not None
