"""Kauldron: configurations that build the optimizer, and its static training step.

Stand-in for `TrainStep` in `kauldron/train/train_step.py` of google-research/kauldron:
a frozen dataclass that holds the optimizer and is a static argument of `jax.jit`, equal
to itself alone. Its configurations, `konfig`, are its own where it is installed.
"""

import dataclasses
import functools
import inspect
from typing import Any

import jax
import optax
import pytest
from _registry import SHAPES, tree
from clients._training import RECIPES, assert_close, update

import optax_matrix as om
from optax_matrix.adapters import kauldron

SHAPES = {name: SHAPES[name] for name in ("wide", "square", "embed")}
PARAMS, GRADS = tree(0, shapes=SHAPES), tree(1, shapes=SHAPES)


@dataclasses.dataclass(kw_only=True, eq=False, frozen=True)
class TrainStep:
    optimizer: optax.GradientTransformation

    @functools.partial(jax.jit, static_argnames=("self",))
    def init(self, params) -> Any:
        return self.optimizer.init(params)

    @functools.partial(jax.jit, static_argnames=("self",), donate_argnames=("state",))
    def step(self, grads, state, params) -> Any:
        return self.optimizer.update(grads, state, params)


@pytest.mark.broad
@pytest.mark.parametrize(("name", "options"), RECIPES.items(), ids=RECIPES)
def test_a_static_step_takes_the_recipes_step(name, options):
    tx = kauldron.optimizer(name, 0.01, clip=1e9, **options)
    train = TrainStep(optimizer=tx)
    state = train.init(PARAMS)
    assert set(state) == {"clip", "step"}
    for _ in range(2):
        updates, state = train.step(GRADS, state, PARAMS)
    assert TrainStep.step._cache_size() == 1
    TrainStep.step.clear_cache()
    bare = getattr(om, name)(0.01, **options)
    assert_close(updates, update(bare, PARAMS, GRADS, GRADS))


def test_a_configuration_builds_it():
    konfig = pytest.importorskip("kauldron.konfig")
    with konfig.imports():
        from optax_matrix.adapters import kauldron as adapter
    cfg = konfig.ConfigDict({"rate": 0.01})
    cfg.optimizer = adapter.optimizer("muoneq", cfg.ref.rate, mode="rowcol")
    cfg.optimizer.mode = "col"  # As a sweep does.
    tx = konfig.resolve(cfg).optimizer
    state = tx.init(PARAMS)
    updates, _ = tx.update(GRADS, state, PARAMS)
    want = kauldron.optimizer("muoneq", 0.01, mode="col")
    assert_close(updates, update(want, PARAMS, GRADS))


def test_the_stand_in_is_as_kauldrons():
    real = pytest.importorskip("kauldron.kd").train.TrainStep
    for name in ("frozen", "eq", "kw_only"):
        own, its = (getattr(c.__dataclass_params__, name) for c in (TrainStep, real))
        assert own == its
    assert real.__eq__ is object.__eq__
    fields = {f.name for f in dataclasses.fields(real)}
    assert {f.name for f in dataclasses.fields(TrainStep)} <= fields
    takes = inspect.signature(real.step).parameters
    assert list(takes)[:3] == ["self", "state", "batch"]
