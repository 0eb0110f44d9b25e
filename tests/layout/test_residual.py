"""The residual stream as metadata tells it: rotate it, and the model is the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.pretrain.config import SIZES
from examples.pretrain.model import Llama
from optax_matrix.layout import (
    MatrixDimensionNumbers,
    by_path,
    infer,
    make_layout,
    residual_sets,
)
from optax_matrix.layout._paths import map_named, named_leaves

TINY = dataclasses.replace(SIZES["tiny"], layers=3, dtype=jnp.float32)


def _model(scan=False):
    config = dataclasses.replace(TINY, scan=scan)
    return Llama(config, rngs=nnx.Rngs(0))


def _rotation(side):
    return np.linalg.qr(np.random.default_rng(0).standard_normal((side, side)))[0]


def _rotated(params, layout, q):
    """Every matrix, embedding and head with the stream's coordinates turned by q."""
    leaves = named_leaves(params)
    stacks = layout.stack({path: leaves[path] for path in layout.views})
    turned = {
        name: x @ q if layout.groups[name].residual == "in" else q.T @ x
        for name, x in stacks.items()
    }
    new = layout.unstack(turned)
    new["embed/embedding"] = leaves["embed/embedding"] @ q
    new["lm_head/kernel"] = q.T @ leaves["lm_head/kernel"]
    return map_named(lambda path, leaf: new.get(path, leaf), params)


@pytest.mark.broad
@pytest.mark.parametrize("scan", [False, True])
def test_logits_do_not_see_a_rotation_of_the_stream(scan):
    """ARO, Eq. 47: this proves the residual sides that `infer` reads."""
    model = _model(scan)
    graph, params = nnx.split(model, nnx.Param)
    params = nnx.to_pure_dict(params)
    layout = make_layout(params, infer(model))
    assert all(g.residual for g in layout.groups.values())
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, TINY.vocab)

    def logits(params):
        state = nnx.state(model, nnx.Param)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(tokens)

    want = logits(params)
    q = _rotation(TINY.embed).astype(np.float32)
    got = logits(_rotated(params, layout, q))
    scale = float(jnp.abs(want).max())
    np.testing.assert_allclose(got, want, atol=2e-6 * scale)
    # The other side would not do.
    wrong = {
        n: dataclasses.replace(g, residual="out" if g.residual == "in" else "in")
        for n, g in layout.groups.items()
        if g.rows == g.cols
    }
    assert wrong
    bad = dataclasses.replace(layout, groups={**layout.groups, **wrong})
    off = logits(_rotated(params, bad, q))
    assert float(jnp.abs(off - want).max()) > 1e-3 * scale


@pytest.mark.parametrize("scan", [False, True])
def test_chain_has_a_set_between_any_two_layers(scan):
    model = nnx.eval_shape(lambda: _model(scan))
    params = nnx.state(model, nnx.Param)
    layout = make_layout(params, infer(model))
    member, count = residual_sets(layout, "chain")
    assert count == TINY.layers + 1
    for name, group in layout.groups.items():
        sets = np.asarray(member[name])
        assert sets.shape == (group.count,)
        reads = group.residual == "in"
        assert set(sets) == set(range(TINY.layers) if reads else range(1, count))
        for m in group.members:
            number = [int(p) for p in m.path.split("/") if p.isdigit()]
            want = number * m.count if number else list(range(TINY.layers))
            own = sets[m.start : m.start + m.count] - (0 if reads else 1)
            assert own.tolist() == want
    member, count = residual_sets(layout, "global")
    assert count == 1
    assert not any(np.any(sets) for sets in member.values())


def test_head_and_embedding_are_at_the_ends():
    rule = by_path(
        numbers={
            "embed": MatrixDimensionNumbers(0, 1, residual="out"),
            "head|up": MatrixDimensionNumbers(0, 1, residual="in"),
        }
    )
    params = {
        "embed": jnp.ones((7, 4)),
        "head": jnp.ones((4, 9)),
        "l": {"0": {"up": jnp.ones((4, 8))}, "1": {"up": jnp.ones((4, 8))}},
    }
    layout = make_layout(params, rule)
    member, count = residual_sets(layout, "chain")
    assert count == 3
    of = {
        m.path: int(member[n][m.start])
        for n, g in layout.groups.items()
        for m in g.members
    }
    assert of == {"embed": 0, "head": 2, "l/0/up": 0, "l/1/up": 1}


def test_what_is_not_known_is_said():
    with pytest.raises(ValueError, match=r"`sharing` needs to know which side.*infer"):
        residual_sets(make_layout({"up": jnp.ones((4, 8))}), "global")
    numbers = {"a": MatrixDimensionNumbers(residual="in")}
    layout = make_layout({"a": jnp.ones((4, 8))}, numbers)
    with pytest.raises(ValueError, match="'global' for parameters without layers"):
        residual_sets(layout, "chain")
    rule = by_path(numbers={"a|b": MatrixDimensionNumbers(residual="in")})
    layout = make_layout({"a": jnp.ones((4, 8)), "b": jnp.ones((6, 8))}, rule)
    with pytest.raises(ValueError, match=r"of one size, got 4 .*6 "):
        residual_sets(layout, "global")
