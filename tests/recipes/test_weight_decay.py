"""Weight decay by a schedule, and none at all, which needs no parameters."""

import inspect

import flax.linen as nn
import jax
import numpy as np
import pytest
from _registry import TABLE, small
from flax import nnx

import optax_matrix as om

NAMES = [*TABLE]
STEPS = {
    "poet",
    "oft",
    "muonh",
}  # Their updates are finished steps, made of the parameters.
SHAPES = {"up/kernel": (6, 10), "norm/scale": (6,)}


def tree(seed):
    random = np.random.default_rng(seed)
    return {n: random.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def default_decay(name):
    return inspect.signature(getattr(om, name)).parameters["weight_decay"].default


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - STEPS))
def test_updates_without_parameters(name):
    tx = getattr(om, name)(0.1, weight_decay=0.0)
    state, gradient = tx.init(tree(0)), tree(1)
    with_params, _ = jax.jit(tx.update)(gradient, state, tree(0))
    without, _ = jax.jit(lambda g, s: tx.update(g, s))(gradient, state)
    for path, x in with_params.items():
        np.testing.assert_allclose(without[path], x, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_recipe_of_a_paper_without_decay():
    assert default_decay("racs") == 0
    tx = om.racs(0.1)
    assert tx.update(tree(1), tx.init(tree(0)))[0].keys() == SHAPES.keys()


@pytest.mark.broad
def test_decay_can_be_turned_on_later():
    """A state without decay is one with decay."""
    with_decay, without = om.muon(0.1, weight_decay=0.1), om.muon(0.1, weight_decay=0.0)
    states = with_decay.init(tree(0)), without.init(tree(0))
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    with pytest.raises(ValueError, match="params"):
        with_decay.update(tree(1), states[1])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("weight_decay_mask", lambda: om.muoneq(0.1, mask=None)),
        ("b1", lambda: om.muon(0.1, beta=0.9)),
        ("other_learning_rate", lambda: om.muon(0.1, adam_learning_rate=0.1)),
    ],
)
def test_words_of_optax_are_answered(name, call):
    with pytest.raises(TypeError, match=f"is called `{name}`"):
        call()


QUICK = {"muon", "racs"}
EACH = [
    n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(NAMES)
]


@pytest.mark.quick("muon-cautious")
@pytest.mark.parametrize(
    "options", [{}, {"cautious_decay": True}], ids=["", "cautious"]
)
@pytest.mark.parametrize("name", EACH)
def test_a_schedule_of_the_decay_counts_steps(name, options):
    """Its second step is that of its second value; optax 0.2.6 stays at the first."""

    def second(weight_decay):
        given = {"weight_decay": weight_decay, "weight_decay_mask": True} | options
        tx = small(name)(0.1, **given)
        step, state = jax.jit(tx.update), tx.init(tree(0))
        for seed in (1, 2):
            updates, state = step(tree(seed), state, tree(0))
        return updates

    scheduled, fixed = second(lambda count: 0.3 * count), second(0.3)
    without = second(0.0)
    assert any(np.ptp(x - without[path]) > 1e-4 for path, x in fixed.items())
    for path, x in fixed.items():
        np.testing.assert_allclose(scheduled[path], x, rtol=1e-5, atol=1e-7)


VECTORS = {"norm/scale", "layers/norm/gain", "query/bias"}
TREE = {
    "layers/up/kernel": (3, 8, 10),
    "layers/norm/gain": (3, 8),
    "norm/scale": (6,),
    "query/bias": (2, 5),
    "embed/embedding": (12, 8),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", EACH)
def test_vectors_do_not_decay_by_default(name):
    """Biases with heads and the norms of stacked layers are vectors, too."""
    params = {n: np.ones(s, np.float32) for n, s in TREE.items()}
    grads = jax.tree.map(lambda x: np.linspace(1, 2, x.size).reshape(x.shape), params)

    def decayed(**options):
        """The leaves that a decay of 0.5 changes."""
        with_decay, without = (
            jax.jit(tx.update)(grads, tx.init(params), params)[0]
            for tx in (
                small(name)(0.1, weight_decay=0.5, **options),
                small(name)(0.1, weight_decay=0.0, **options),
            )
        )
        return {n for n in params if not np.allclose(with_decay[n], without[n])}

    kernels = set() if name in STEPS else {"layers/up/kernel"}
    others = set(TREE) - {"layers/up/kernel"}
    assert decayed() == kernels | others - VECTORS
    assert decayed(weight_decay_mask=True) == kernels | others
    assert decayed(cautious_decay=True) & VECTORS == set()


def test_the_mask_for_optax_is_the_default():
    params = {n: np.ones(s, np.float32) for n, s in TREE.items()}
    mask = om.matrices.all_but_vectors(params)
    assert {n for n, decays in mask.items() if not decays} == VECTORS


def test_a_state_does_not_depend_on_what_decays():
    states = [om.muon(0.1, weight_decay=d).init(tree(0)) for d in (0.0, 0.1)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_a_mask_has_the_boxes_of_the_tree(kind):
    """It decays what it says in trees of variables and boxes as in plain ones."""
    plain = tree(0)
    box = {"nnx": nnx.Param, "linen": lambda x: nn.Partitioned(x, (None,) * x.ndim)}
    params, grads = (jax.tree.map(box[kind], tree(seed)) for seed in (0, 1))
    if kind == "nnx":
        params, grads = nnx.State(params), nnx.State(grads)
    mask = lambda params: jax.tree.map(lambda x: x.ndim < 2, params)
    tx = om.muon(0.1, weight_decay=0.5, weight_decay_mask=mask)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    want, _ = jax.jit(tx.update)(tree(1), tx.init(plain), plain)
    without = om.muon(0.1, weight_decay=0.0)
    free, _ = jax.jit(without.update)(tree(1), without.init(plain), plain)
    got = dict(zip(sorted(plain), jax.tree.leaves(updates), strict=True))
    for path, x in want.items():
        np.testing.assert_allclose(got[path], x, rtol=1e-6)
    np.testing.assert_array_equal(want["up/kernel"], free["up/kernel"])
    assert not np.allclose(want["norm/scale"], free["norm/scale"])
