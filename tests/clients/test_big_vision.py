"""big_vision: a direction by name, with clip, rate, decay and schedule outside.

Stand-in, not importable from a package index: `make` of `big_vision/optax.py` in
google-research/big_vision, in its order: optimizer, rate, decay of kernels, schedule,
sign, each of them masked.
"""

import operator
import types

import jax
import optax
import pytest
from _registry import SHAPES, tree
from clients._training import assert_close

import optax_matrix as om
from optax_matrix.adapters import big_vision

SHAPES = {name: SHAPES[name] for name in ("wide", "square", "embed")}
PARAMS, *STREAM = (tree(seed, shapes=SHAPES) for seed in range(3))
RATE, DECAY = 0.01, 1e-4
SCHEDULE = optax.linear_schedule(1.0, 0.0, 4)
KERNELS = {"wide": {"kernel": True}, "square": {"kernel": True, "bias": False}}
KERNELS["embed"] = {"embedding": False}


def make(name, options, frozen):
    trained = jax.tree.map(operator.not_, frozen)
    direction = operator.attrgetter(name)(optax)(**options)
    return optax.chain(
        optax.masked(optax.clip_by_global_norm(1e9), trained),
        optax.masked(direction, trained),
        optax.scale(RATE),
        optax.add_decayed_weights(DECAY, KERNELS),
        optax.masked(optax.scale_by_schedule(SCHEDULE), trained),
        optax.masked(optax.set_to_zero(), frozen),
        optax.scale(-1.0),
    )


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "options"),
    [("muoneq", {"mode": "rowcol"}), ("aro", {})],
    ids=["muoneq", "aro"],
)
def test_the_chain_is_the_recipe(name, options, monkeypatch):
    """r s (d + w / r) = r s d + s w: decay here is relative to the peak rate."""
    monkeypatch.setattr(optax, "optax_matrix", types.SimpleNamespace(), raising=False)
    big_vision.register()
    frozen = {**jax.tree.map(lambda _: False, PARAMS), "square": {"kernel": True}}
    frozen["square"]["bias"] = True
    tx = make(f"optax_matrix.scale_by_{name}", options, frozen)
    bare = getattr(om, name)(
        lambda count: RATE * SCHEDULE(count),
        weight_decay=DECAY / RATE,
        weight_decay_mask=KERNELS,
        **options,
    )
    state, bare_state = tx.init(PARAMS), bare.init(PARAMS)
    update, bare_update = jax.jit(tx.update), jax.jit(bare.update)
    for grads in STREAM:
        got, state = update(grads, state, PARAMS)
        want, bare_state = bare_update(grads, bare_state, PARAMS)
        assert not any(x.any() for x in jax.tree.leaves(got.pop("square")))
        want.pop("square")
        assert_close(got, want)


def test_every_direction_has_its_name(monkeypatch):
    monkeypatch.setattr(optax, "optax_matrix", types.SimpleNamespace(), raising=False)
    big_vision.register()
    names = {n for n in om.recipes.__all__ if n.startswith("scale_by_")}
    assert set(vars(optax.optax_matrix)) == names
