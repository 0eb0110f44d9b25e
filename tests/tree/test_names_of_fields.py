"""Parameters in named tuples and dataclasses: a field is a part of the path.

``value`` is what NNX and Linen call the content of a box, and also what models call one
of the four projections of attention.
"""

from typing import Any, NamedTuple

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, ones

import optax_matrix as om
from optax_matrix._paths import flatten_named, map_named, named_leaves, natural_order


class Attention(NamedTuple):
    query: Any
    key: Any
    value: Any
    out: Any


class Box(NamedTuple):
    """A node with nothing but its content, as boxes of frameworks are."""

    value: Any


def params(form=tuple):
    """A block of a transformer, in a named tuple or in a dict."""
    kernels = np.float32(gaussian(4, 8, 8, seed=3))
    attention = Attention(*map(jnp.asarray, kernels))
    attn = attention._asdict() if form is dict else attention
    return {"layers_0": {"attn": attn, "mlp": {"up": {"kernel": ones(8, 16)}}}}


def plain(tree):
    of = lambda x: x._asdict() if isinstance(x, Attention) else x
    return jax.tree.map(of, tree, is_leaf=lambda x: isinstance(x, Attention))


def test_paths():
    names = ["query", "key", "value", "out"]
    paths = [*(f"layers_0/attn/{name}" for name in names), "layers_0/mlp/up/kernel"]
    assert sorted(named_leaves(params())) == sorted(paths)
    assert set(named_leaves(params(dict))) == set(paths)
    alone = {"attn": Attention(None, optax.MaskedNode(), ones(3), None)}
    assert list(named_leaves(alone)) == ["attn/value"]
    for box in (Box, nnx.Param):
        tree = {"a": box(ones(3)), "c": Attention(*[box(ones(2))] * 4)}
        assert list(named_leaves(tree)) == ["a", *(f"c/{name}" for name in names)]
        leaves, rebuild = flatten_named(tree)
        assert jax.tree.structure(rebuild(leaves)) == jax.tree.structure(tree)
        both = map_named(lambda path, x, y: (path, x is y), tree, tree)
        pairs = named_leaves(both, lambda x: type(x) is tuple)
        assert pairs == {path: (path, True) for path in leaves}


def test_digits_that_are_no_numbers():
    assert natural_order("W1²") > natural_order("W1")
    om.muon(0.1).init({"layers": {"W1²": ones(3, 5)}})


@pytest.mark.daily("plain", "rule", "8bit")
@pytest.mark.broad
@pytest.mark.parametrize(
    "tx",
    [
        om.muoneq(0.1),
        om.muon(0.1, dimension_numbers=om.matrices.by_path(exclude="value$")),
        om.aro(0.1, sharing="chain"),
        om.muon(0.1, placement=om.quantized(), other=om.adamw_8bit(0.1)),
        om.adamw_8bit(0.1, min_size=16),
        om.quantization.quantize_state(optax.adamw(0.1), min_size=16, seed=0),
        optax.MultiSteps(om.muon(0.1), 2),
    ],
    ids=["plain", "rule", "chain", "quantized", "8bit", "random", "steps"],
)
def test_a_named_tuple_is_trained_as_a_dict(tx):
    found = []
    for form in (tuple, dict):
        tree = params(form)
        state, update = tx.init(tree), jax.jit(tx.update)
        for _ in range(3):
            new, state = update(tree, state, tree)
        found.append((plain(new), om.to_portable(state, tree)))
    (got, held), (want, wanted) = found
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, want)
    assert held.keys() == wanted.keys()


def test_eight_bits_for_the_moments_of_a_named_tuple():
    """Fields of parameters do not hide the field of the moments."""
    state = jax.eval_shape(om.adamw_8bit(0.1, min_size=16).init, params())
    adam = state.inner_state[0]
    assert {x.dtype.name for x in jax.tree.leaves((adam.mu, adam.nu))} == {"uint8"}
