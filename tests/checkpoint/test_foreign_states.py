"""States and parameters of others: the names of their fields mean nothing."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import tree

import optax_matrix as om
from optax_matrix.checkpoint import (
    adopt_state,
    check_restored,
    from_portable,
    to_portable,
)

pytestmark = pytest.mark.usefixtures("unprobed")

PARAMS = tree(0, shapes={"up": {"kernel": (3, 6), "bias": (6,)}})
SAME = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)


class Own(NamedTuple):
    """A user's state."""

    count: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Held:
    """A user's state, or a model."""

    count: Any
    nu: Any


STATES = {
    "dict": lambda p: {"step": jnp.int32(0), "nu": jax.tree.map(jnp.negative, p)},
    "bare": lambda _: jnp.int32(0),
    "bools": lambda p: jax.tree.map(lambda x: x > 0, p),
    "tuple": lambda p: (jnp.bool_(True), jax.tree.map(jnp.negative, p)),
    "key": lambda _: {"key": jax.random.key(0)},
    "named tuple": lambda p: Own(np.float32(0.5), jax.tree.map(jnp.negative, p)),
    "dataclass": lambda p: Held(np.float32(0.5), jax.tree.map(jnp.negative, p)),
}
IDENTITY = lambda updates, state, _=None: (updates, state)
TUPLED = lambda tx: optax.chain(optax.trace(0.9), tx)
WRAPPED = {
    "itself": om.on_matrices,
    "chain": lambda tx: om.on_matrices(TUPLED(tx)),
    "other": lambda tx: om.on_matrices(optax.trace(0.9), other=tx),
    "after": lambda tx: om.on_matrices(optax.trace(0.9), after=tx),
    "rotate": lambda tx: om.on_matrices(om.rotate(tx)),
    "eigenbasis": lambda tx: om.on_matrices(om.in_eigenbasis(tx)),
    "precondition": lambda tx: om.on_matrices(om.precondition(tx)),
    "low rank": lambda tx: om.on_matrices(om.project_low_rank(tx, rank=2)),
    "eight bits": lambda tx: om.on_matrices(
        om.quantization.quantize_state(TUPLED(tx), min_size=1)
    ),
    "steps": lambda tx: optax.MultiSteps(om.on_matrices(tx), 2),
}


@pytest.mark.broad
@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("kind", STATES)
def test_any_state_of_others_passes(kind, wrapper):
    tx = WRAPPED[wrapper](optax.GradientTransformation(STATES[kind], IDENTITY))
    state = tx.init(PARAMS)
    check_restored(state)
    portable = to_portable(state, PARAMS)
    raw = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    filled = from_portable(portable, tx.init(PARAMS), PARAMS)
    SAME(jax.tree.map(raw, filled), jax.tree.map(raw, state))


@pytest.mark.broad
@pytest.mark.parametrize(
    "model", [Held, Own, lambda *x: dict(zip("cn", x, strict=True))]
)
def test_parameters_with_names_of_fields(model):
    params = {"count": model(jnp.float32(-1.0), -jnp.ones(6)), "nu": -jnp.ones((3, 6))}
    tx = optax.MultiSteps(om.muon(0.1), 2)
    state = tx.init(params)
    state = state._replace(acc_grads=params)
    check_restored(state)
    SAME(from_portable(to_portable(state, params), tx.init(params), params), state)


SIGNED_NU = {"sophia": lambda: optax.contrib.sophia(0.1), "sm3": optax.scale_by_sm3}
SQUARES = {
    "adam": optax.scale_by_adam,
    "amsgrad": optax.scale_by_amsgrad,
    "belief": optax.scale_by_belief,
    "rms": optax.scale_by_rms,
    "rms with count": lambda: optax.scale_by_rms(bias_correction=True),
    "stddev": optax.scale_by_stddev,
    "stddev with count": lambda: optax.scale_by_stddev(bias_correction=True),
    "yogi": optax.scale_by_yogi,
    "novograd": optax.scale_by_novograd,
    "ademamix": optax.contrib.scale_by_ademamix,
    "ours": om.scale_by_second_moment,
    "ours per matrix": om.transforms.scale_by_adam_per_matrix,
}


def with_negative(state):
    """Where a field of this name is, in any node."""

    def turned(keys, x):
        names = {getattr(key, "name", None) for key in keys}
        return x - np.float32(1) if names & {"nu", "nu_max", "root"} else x

    return jax.tree_util.tree_map_with_path(turned, jax.device_get(state))


@pytest.mark.broad
@pytest.mark.parametrize("name", [*SIGNED_NU, *SQUARES])
@pytest.mark.parametrize("place", ["inner", "other"])
def test_only_averages_of_squares_have_no_sign(name, place):
    if (name, place) == ("ours per matrix", "other"):
        pytest.skip("It takes no vectors.")
    block = {**SIGNED_NU, **SQUARES}[name]()
    tx = om.on_matrices(block)
    if place == "other":
        tx = om.on_matrices(optax.trace(0.9), other=block)
    fresh = tx.init(PARAMS)
    bad = with_negative(fresh)
    assert any((x < 0).any() for x in jax.tree.leaves(bad) if x.dtype == np.float32)
    check_restored(fresh)
    portable = to_portable(bad, PARAMS)
    if name in SIGNED_NU:
        check_restored(bad)
        SAME(from_portable(portable, fresh, PARAMS), bad)
        return
    for call in (
        lambda: check_restored(bad),
        lambda: from_portable(portable, fresh, PARAMS),
    ):
        with pytest.raises(ValueError, match="no negative numbers in the second mom"):
            call()


def test_a_negative_nu_is_adopted_where_it_may_be_one():
    sophia, adam = optax.contrib.sophia(0.1), optax.scale_by_adam()
    source = with_negative(sophia.init(PARAMS))
    target = lambda tx: om.on_matrices(optax.identity(), other=tx)
    state = adopt_state(source, target(sophia), PARAMS, unused="drop")
    np.testing.assert_array_equal(state.other[0].nu["up"]["bias"], -1)
    with pytest.raises(ValueError, match="no negative numbers in the second mom"):
        adopt_state(source, target(adam), PARAMS, unused="drop")


def test_an_integer_is_a_hyperparameter_if_it_is_exact():
    make = lambda rate: optax.inject_hyperparams(om.muon)(learning_rate=rate)
    fresh = make(0.5).init(PARAMS)
    portable = to_portable(make(1).init(PARAMS), PARAMS)
    key = "hyperparams/learning_rate"
    portable[key] = np.int32(1)
    state = from_portable(portable, fresh, PARAMS)
    rate = state.hyperparams["learning_rate"]
    assert (rate, rate.dtype) == (1.0, jnp.float32)
    with pytest.raises(ValueError, match="must hold real numbers for 'hyperparams"):
        from_portable({**portable, key: np.int32(2**24 + 1)}, fresh, PARAMS)
    whole = make(1).init(PARAMS)
    whole.hyperparams["learning_rate"] = jnp.int32(1)
    with pytest.raises(ValueError, match="must hold integers for 'hyperparams"):
        from_portable({**portable, key: np.float32(0.5)}, whole, PARAMS)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(4, 6), (6,)])
def test_a_parameter_with_the_name_of_roundings_is_missing(shape):
    params = {"up": jnp.ones((3, 5)), "scales": {"count": jnp.ones(shape)}}
    for options in ({}, {"placement": om.quantized(min_size=1, seed=0)}):
        tx = om.muon(0.1, **options)
        portable, fresh = to_portable(tx.init(params), params), tx.init(params)
        from_portable(portable, fresh, params)
        own = [key for key in portable if "mu/scales/count" in key]
        assert own
        some = {key: x for key, x in portable.items() if key not in own}
        with pytest.raises(ValueError, match=r"no state for .*scales/count"):
            from_portable(some, fresh, params)
        less = {"up": params["up"]}
        with pytest.raises(ValueError, match=r"state of no use, .*scales/count"):
            from_portable(portable, tx.init(less), less)


def test_the_number_that_does_not_fit_is_named():
    tx = om.on_matrices(optax.GradientTransformation(lambda _: jnp.int8(0), IDENTITY))
    fresh = tx.init(PARAMS)
    portable = {**to_portable(fresh, PARAMS), "inner_state": np.int32(-129)}
    with pytest.raises(ValueError, match="got -129; give numbers from -128 to 127"):
        from_portable(portable, fresh, PARAMS)
