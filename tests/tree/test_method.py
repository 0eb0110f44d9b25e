"""The state says whose it is: that of another method is refused, never used."""

import equinox as eqx
import flax.serialization
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from _matrices import ones
from _registry import SMALL, TABLE, small
from _walks import walk
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.checkpoint import check_restored
from optax_matrix.tree import on_matrices
from optax_matrix.tree.state import OnMatricesState

PARAMS = {"up": {"kernel": ones(4, 6), "bias": ones(6)}}
# Pairs of recipes whose states a restore took for one another.
PAIRS = {
    "aro": ("eigen_sinkhorn", {}, {}),
    "apollo_mini": ("apollo", {"rank": 1}, {}),
    "alice_0": ("alice", {"rank": 2}, {"rank": 2}),
    "muoneq": ("muon", {}, {}),
}


def _pair(name):
    other, first, second = PAIRS[name]
    return small(other, **first)(1e-3), other, small(name, **second)(1e-3)


def _arrays(state):
    return [(x.shape, x.dtype) for x in jax.tree.leaves(state)]


def _method_of(state):
    is_ours = lambda x: isinstance(x, OnMatricesState)
    nodes = filter(is_ours, jax.tree.leaves(state, is_leaf=is_ours))
    return [name for node in nodes for name in node.method]


@walk("name", TABLE)
def test_the_state_of_every_recipe_has_its_name(name):
    states = [jax.eval_shape(small(name)(1e-3).init, PARAMS)]
    if direction := getattr(om, f"scale_by_{name}", None):
        states.append(jax.eval_shape(direction(**SMALL.get(name, {})).init, PARAMS))
    assert [_method_of(state) for state in states] == [[name]] * len(states)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_state_of_another_recipe_is_refused_by_name(name, wrap):
    wrong, other, right = _pair(name)
    state = jax.jit(wrong.init)(PARAMS)
    if name != "alice_0":  # Without tracking, which flax does not miss.
        assert _arrays(state) == _arrays(jax.eval_shape(right.init, PARAMS))
    message = rf"`state` must be that of {name}, got that of {other};"
    with pytest.raises(ValueError, match=message):
        wrap(right.update)(PARAMS, state, PARAMS)


@pytest.mark.parametrize("name", PAIRS)
def test_flax_does_not_restore_it(name):
    wrong, _, right = _pair(name)
    state, fresh = (jax.jit(tx.init)(PARAMS) for tx in (wrong, right))
    data = flax.serialization.to_bytes(state)
    with pytest.raises(ValueError, match=name):
        flax.serialization.from_bytes(fresh, data)
    same = flax.serialization.from_bytes(state, data)
    check_restored(same)


@pytest.mark.broad
def test_orbax_does_not_restore_it(tmp_path):
    wrong, _, right = _pair("aro")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", wrong.init(PARAMS))
        checkpointer.wait_until_finished()
        with pytest.raises(ValueError, match="eigen_sinkhorn"):
            checkpointer.restore(tmp_path / "state", right.init(PARAMS))


def test_a_restore_by_position_is_noticed(tmp_path):
    wrong, _, right = _pair("aro")
    old, fresh = (jax.jit(tx.init)(PARAMS) for tx in (wrong, right))
    eqx.tree_serialise_leaves(tmp_path / "state", old)
    state = eqx.tree_deserialise_leaves(tmp_path / "state", fresh)
    with pytest.raises(ValueError, match=r"labeled as the state of aro, .*by position"):
        check_restored(state)
    with pytest.raises(ValueError, match=r"labeled as the state of aro, .*by position"):
        right.update(PARAMS, state, PARAMS)
    check_restored(fresh)


OTHERS = {
    "adamw": optax.adamw(1e-3),
    "sgd": optax.sgd(1e-3),
    "chain": optax.chain(optax.clip_by_global_norm(1.0), om.muon(1e-3)),
    "poet": small("poet")(1e-3),
    "soap": om.soap(1e-3),
    "other": om.muon(1e-3, other=optax.sgd(1e-3, momentum=0.9)),
    "scale_by": om.scale_by_muon(),
    "nothing": optax.identity(),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", OTHERS)
def test_any_other_state_ends_in_a_clear_error(name):
    state = OTHERS[name].init(PARAMS)
    for tx in (om.muon(1e-3), om.scale_by_muon(), small("poet")(1e-3)):
        own = jax.tree.structure(jax.eval_shape(tx.init, PARAMS))
        if jax.tree.structure(state) == own:
            continue
        for update in (tx.update, jax.jit(tx.update)):
            with pytest.raises(ValueError, match="`state` must be"):
                update(PARAMS, state, PARAMS)


def test_a_state_in_other_containers_is_told_apart():
    tx = om.muon(1e-3, other=optax.sgd(1e-3, momentum=0.9))
    data = flax.serialization.to_bytes(jax.jit(tx.init)(PARAMS))
    state = flax.serialization.msgpack_restore(data)
    with pytest.raises(ValueError, match=r"types differ.*nnx.Param.*as the target"):
        tx.update(PARAMS, state, PARAMS)


def test_an_init_that_fails_does_not_hide_the_error():
    started = []

    def init(params):
        del params
        if started:
            raise RuntimeError("of init")

    def update(*args):
        raise RuntimeError(f"of update, with {len(args)} arguments")

    tx = om.muon(1e-3, other=optax.GradientTransformation(init, update))
    state = jax.eval_shape(tx.init, PARAMS)
    started.append(True)
    with pytest.raises(RuntimeError, match="of update"):
        jax.eval_shape(tx.update, PARAMS, state, PARAMS)


def test_an_error_of_another_cause_is_handed_on():
    def fail(*args):
        raise RuntimeError(f"of the user's, with {len(args)} arguments")

    other = optax.GradientTransformation(lambda _: optax.EmptyState(), fail)
    tx = om.muon(1e-3, other=other)
    with pytest.raises(RuntimeError, match="of the user's"):
        jax.eval_shape(lambda: tx.update(PARAMS, tx.init(PARAMS), PARAMS))


@pytest.mark.parametrize(
    "options", [{"b1": 0.5}, {"policy": "eigen"}, {"weight_decay": 0.5}, {"b2": 0.5}]
)
def test_numbers_and_options_of_a_method_may_change(options):
    """As far as the arrays are the same: the name is that of the recipe alone."""
    state = om.aro(1e-3).init(PARAMS)
    jax.eval_shape(om.aro(1e-4, **options).update, PARAMS, state, PARAMS)
    injected = om.inject_hyperparams(om.aro)(1e-3)
    assert _method_of(injected.init(PARAMS)) == ["aro"]


@pytest.mark.quick("False-AxisType.Auto")
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("owned", [False, True])
def test_the_name_survives_jit_and_sharding(cpus, kind, owned):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind,) * 2, devices=cpus[:4])
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    params = {"kernel": put(ones(4, 8), "x", "y"), "bias": put(ones(8), "y")}
    placement = om.owners.from_params(params, ("x", "y")) if owned else None
    tx = om.muon(1e-3, placement=placement)
    state = tx.init(params)
    for _ in range(2):
        _, state = jax.jit(tx.update)(params, state, params)
    assert _method_of(state) == ["muon"]
    check_restored(state)
    with pytest.raises(ValueError, match="got that of muon"):
        jax.jit(om.muoneq(1e-3, placement=placement).update)(params, state, params)


def test_a_build_of_the_user_may_have_a_name_or_none():
    plain, named = (on_matrices(optax.trace(0.9), name=n) for n in (None, "mine"))
    assert _method_of(plain.init(PARAMS)) == []
    assert _method_of(named.init(PARAMS)) == ["mine"]
    with pytest.raises(ValueError, match="must be that of mine, got one without"):
        named.update(PARAMS, plain.init(PARAMS))
    with pytest.raises(ValueError, match="without a name, got that of mine"):
        plain.update(PARAMS, named.init(PARAMS))
    with pytest.raises(ValueError, match="`name` must be"):
        on_matrices(optax.trace(0.9), name=3)
    one, other = (np.asarray(jax.tree.leaves(s.method)) for s in _two(named))
    np.testing.assert_array_equal(one, other)


def _two(tx):
    return tx.init(PARAMS), jax.jit(tx.init)(PARAMS)


def test_portable_state_is_that_of_one_method():
    wrong, other, right = _pair("aro")
    portable = om.to_portable(wrong.init(PARAMS), PARAMS)
    fresh = right.init(PARAMS)
    message = rf"`portable` must be a state of aro, got one of {other}"
    with pytest.raises(ValueError, match=message):
        om.from_portable(portable, fresh, PARAMS)
    with pytest.raises(ValueError, match=message):
        om.from_portable(portable, fresh, PARAMS, missing="init", unused="drop")
    on_purpose = {k: x for k, x in portable.items() if not k.startswith("method/")}
    assert len(on_purpose) == len(portable) - 1
    om.from_portable(on_purpose, fresh, PARAMS)
