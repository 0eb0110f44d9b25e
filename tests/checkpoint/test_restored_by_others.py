"""States that others restored: by leaf order, from pure dicts, in another dtype."""

from typing import NamedTuple

import flax.nnx as nnx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _matrices import ones
from _registry import RECIPES, tree
from _tiers import tiered

import optax_matrix as om
from optax_matrix.checkpoint import check_restored, from_portable, to_portable

PARAMS = {"k": {"kernel": ones(6, 4)}, "b": ones(4)}
SEEDS = 3


def saved(state, path):
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(path / "state", state)
    checkpointer.wait_until_finished()
    return lambda *target: checkpointer.restore(path / "state", *target)


@pytest.mark.parametrize("name", tiered(RECIPES))
def test_leaves_in_another_order_are_refused_in_words(name):
    """As after a restore without a target: the leaves of dicts, sorted by field."""
    tx, params = RECIPES[name](1e-2), tree(0)
    state = jax.jit(tx.init)(params)

    def as_dicts(node):
        if hasattr(node, "_asdict"):
            return {k: as_dicts(x) for k, x in node._asdict().items()}
        if isinstance(node, dict):
            return {k: as_dicts(x) for k, x in node.items()}
        if isinstance(node, tuple):
            return {str(i): as_dicts(x) for i, x in enumerate(node)}
        return node

    leaves = jax.tree.leaves(as_dicts(state))
    mixed = jax.tree.unflatten(jax.tree.structure(state), leaves)
    calls = [
        lambda s: check_restored(s),
        lambda s: to_portable(s, params),
        lambda s: from_portable({}, s, params),
        lambda s: tx.update(params, s, params),
        lambda s: jax.eval_shape(tx.update, params, s, params),
        lambda s: om.checkpoint.reset_state(tx, s, params, True),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"`state` .*restored by position; save"):
            call(mixed)


def test_a_tree_without_stacks_is_refused():
    """Such as that of a restore without a target."""
    for restored in (PARAMS, optax.adam(0.1).init(PARAMS)):
        with pytest.raises(ValueError, match="`state` must hold a state of `on_matr"):
            check_restored(restored)


def test_leaf_order_without_a_name_is_refused():
    tx = om.on_matrices(optax.trace(0.9))
    state = tx.init(PARAMS)
    mixed = jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(state)[::-1])
    for call in (check_restored, lambda s: tx.update(PARAMS, s)):
        with pytest.raises(ValueError, match="`state` must hold under `manifest`"):
            call(mixed)


@pytest.fixture(scope="module")
def sweep():
    params = {"k": {"kernel": ones(SEEDS, 6, 4)}, "b": ones(SEEDS, 4)}
    tx = om.muon(0.02)
    state = jax.vmap(tx.init)(params)
    return tx, params, jax.vmap(tx.update)(params, state, params)[1]


@pytest.mark.broad
def test_a_sweep_is_checked_run_by_run(sweep):
    """Not in one run alone."""
    _, _, state = sweep
    check_restored(state)
    ((name, manifest),) = state.manifest.items()
    wrong = state._replace(manifest={name: manifest.at[1, 0, 0].add(1)})
    with pytest.raises(ValueError, match="must hold in stack"):
        check_restored(wrong)
    wrong = state._replace(method={"muon": state.method["muon"].at[2].add(1)})
    with pytest.raises(ValueError, match="labeled as the state of muon"):
        check_restored(wrong)


@pytest.mark.broad
def test_a_sweep_is_taken_apart_run_by_run(sweep):
    tx, params, state = sweep
    calls = [
        lambda: to_portable(state, params),
        lambda: from_portable({}, state, params),
        lambda: tx.update(params, state, params),
        lambda: om.checkpoint.reset_state(tx, state, params, True),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"one run, but has the axes \(3,\)"):
            call()
    for run in range(SEEDS):
        one, own = jax.tree.map(lambda x: x[run], (state, params))  # noqa: B023
        filled = from_portable(to_portable(one, own), tx.init(own), own)
        jax.tree.map(np.testing.assert_array_equal, filled, one)
    reset = jax.vmap(lambda s, p: om.checkpoint.reset_state(tx, s, p, True))(
        state, params
    )
    fresh = jax.vmap(tx.init)(params)
    np.testing.assert_array_equal(
        *[jax.tree.leaves(s.inner_state)[0] for s in (reset, fresh)]
    )


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: lambda s: jax.vmap(f)(s)])
@pytest.mark.parametrize("tx", [om.muon(0.02), optax.adam(1e-3)], ids=["muon", "adam"])
def test_traced_arrays_are_refused_in_words(tx, wrap):
    state = jax.tree.map(lambda x: x[None], tx.init(PARAMS))
    calls = [
        lambda s: to_portable(s, PARAMS),
        lambda s: from_portable({}, s, PARAMS),
        lambda s: check_restored(s),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"`state` must hold values, got traced"):
            wrap(call)(state)
    fresh = tx.init(PARAMS)
    with pytest.raises(ValueError, match=r"`portable` must hold values, got traced"):
        wrap(lambda s: from_portable(s, fresh, PARAMS))({"mu": ones(1, 2)})


def test_shapes_are_refused_in_words():
    shapes = jax.eval_shape(om.muon(0.02).init, PARAMS)
    calls = [
        lambda s: to_portable(s, PARAMS),
        lambda s: from_portable({}, s, PARAMS),
        lambda s: check_restored(s),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="`state` must hold values, got shapes"):
            call(shapes)


OTHERS = [pytest.param(n, marks=pytest.mark.slow) for n in RECIPES if n != "muon"]


@pytest.mark.broad
@pytest.mark.parametrize("name", ["muon", *OTHERS])
def test_a_pure_dict_of_nnx_restores_without_a_target(name, tmp_path):
    class Model(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(6, 6, rngs=nnx.Rngs(0)) for _ in "ab"])
            self.up = nnx.Linear(6, 8, rngs=nnx.Rngs(1))

    def optimizer():
        model = Model()
        return model, nnx.Optimizer(model, RECIPES[name](1e-2), wrt=nnx.Param)

    model, old = optimizer()
    grads = jax.tree.map(jnp.cos, nnx.state(model, nnx.Param))
    old.update(model, grads)
    restored = saved(nnx.to_pure_dict(nnx.state(old)), tmp_path)()
    model, new = optimizer()
    state = nnx.state(new)
    nnx.replace_by_pure_dict(state, restored)
    nnx.update(new, state)
    same = [jax.tree.leaves(nnx.to_pure_dict(nnx.state(x))) for x in (old, new)]
    jax.tree.map(np.testing.assert_array_equal, *same)
    new.update(model, grads)


@pytest.mark.broad
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_a_bfloat16_checkpoint_restores_into_float32(name, tmp_path):
    """The structure does not depend on the dtype, and Orbax casts."""
    tx, params = RECIPES[name](1e-2), tree(0)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    state = jax.jit(tx.init)(half)
    fresh = jax.jit(tx.init)(params)
    assert jax.tree.structure(state) == jax.tree.structure(fresh)
    restored = saved(state, tmp_path)(fresh)
    types = lambda s: jax.tree.map(lambda x: x.dtype, s)
    assert types(restored) == types(fresh)
    check_restored(restored)
    jax.eval_shape(tx.update, params, restored, params)


def test_stacks_of_one_shape_in_two_dtypes_are_two():
    params = {"a": ones(6, 4), "b": np.ones((6, 4), jnp.bfloat16)}
    state = om.on_matrices(optax.trace(0.9)).init(params)
    dtypes = {x.dtype.name for x in state.inner_state.trace.values()}
    assert dtypes == {"float32", "bfloat16"}


def kinds_in(node):
    """The types of all NamedTuples in a state."""
    if isinstance(node, tuple):
        yield from [type(node)] if hasattr(node, "_fields") else []
    if isinstance(node, (tuple, dict)):
        for part in node.values() if isinstance(node, dict) else node:
            yield from kinds_in(part)


@pytest.mark.broad
def test_every_state_is_registered_for_export():
    """In states of all recipes; registering one of their types again raises."""
    om.checkpoint.register_export()
    om.checkpoint.register_export()  # Changes nothing.
    params = tree(0)
    txs = [make(1e-2) for make in RECIPES.values()]
    txs += [optax.chain(optax.clip(1.0), om.inject_hyperparams(om.muon)(1e-2))]
    txs += [om.diagnostics.monitor(om.muon(1e-2), ("orthogonality_error",))]
    txs += [om.muon(1e-2, placement=om.quantized(min_size=1))]
    txs += [optax.MultiSteps(optax.partition({"a": om.muon(1e-2)}, "a"), 2)]
    kinds = {k for tx in txs for k in kinds_in(jax.eval_shape(tx.init, params))}
    assert len(kinds) > 20
    for kind in kinds:
        with pytest.raises(ValueError, match="Duplicate serialization registration"):
            jax.export.register_namedtuple_serialization(
                kind, serialized_name=f"again {kind}"
            )


def test_what_the_user_has_registered_stays():
    class MineState(NamedTuple):
        count: int

    MineState.__module__ = "optax.mine"
    jax.export.register_namedtuple_serialization(MineState, serialized_name="mine")
    om.checkpoint.register_export()


@pytest.mark.broad
@pytest.mark.daily("muon")
@pytest.mark.parametrize(
    "make",
    [
        lambda: om.muon(0.02),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), om.soap(1e-3)),
        lambda: om.inject_hyperparams(om.galore)(1e-3, rank=2),
    ],
    ids=["muon", "clipped soap", "injected galore"],
)
def test_export_of_a_step(make):
    om.checkpoint.register_export()
    params, tx = tree(0), make()
    state, update = tx.init(params), jax.jit(tx.update)
    program = jax.export.export(update)(params, state, params)
    loaded = jax.export.deserialize(program.serialize())
    got, want = loaded.call(params, state, params), update(params, state, params)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, got, want)
