"""State of two stacks in the slots of four owners, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_matrix.stacks.identities import FILLER
from optax_matrix.stacks.slots import (
    Slot,
    check_slot,
    map_states,
    pooled_like,
    slot_named,
    slot_of,
    unpooled,
    whole_shapes,
)
from optax_matrix.tree.state import OnMatricesState

OWNERS = 4
store, take = jax.jit(pooled_like), jax.jit(unpooled)
# "a" has a full round, and owner 0 one matrix more; owners 2 and 3 have two of "b".
A = Slot(0, 0, "float32", (1, 3, 2))
B = Slot(0, 0, "float32", (2, 2, 4))
REAL = {"a": [1, 1, 1, 0, 1, 0, 1, 0], "b": [0, 0, 0, 0, 1, 1, 1, 1]}


def manifest(name):
    ids = np.arange(16, dtype=np.uint32).reshape(8, 2)
    ids = np.where(np.array(REAL[name], bool)[:, None], ids, np.array(FILLER))
    return np.concatenate([ids, np.zeros((8, 2))], axis=1).astype(np.uint32)


def state_of(a, b, slots=None):
    manifests = {name: manifest(name) for name in REAL}
    counts = {"a": np.arange(8), "b": np.arange(8)}
    return OnMatricesState({}, manifests, {}, ({"a": a, "b": b}, counts), slots=slots)


def whole(seed):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal((8, *shape)).astype(np.float32)
    return state_of(draw(3, 2), draw(2, 4))


def empty():
    nodes = {A.label: np.zeros((4, 3, 2), np.float32)}, {B.label: B.checksum}
    return state_of(*nodes, slots={A.key: np.zeros((OWNERS, 16), np.float32)})


def test_each_owner_has_the_state_of_its_matrix():
    made, state = whole(0), store(whole(0), empty())
    a, b = made.inner_state[0].values()
    want = np.zeros((OWNERS, 16), np.float32)
    want[0, :6] = a[1].ravel()
    want[2:] = b[4:].reshape(2, 16)
    np.testing.assert_array_equal(state.slots["0_0_float32"], want)
    np.testing.assert_array_equal(state.inner_state[0]["a"][A.label], a[::2])
    assert state.inner_state[0]["b"][B.label] == B.checksum
    np.testing.assert_array_equal(state.inner_state[1]["a"], np.arange(8))


def test_whole_stacks_come_back_with_fresh_padding():
    made = whole(0)
    fresh = state_of(np.full((4, 3, 2), 7.0), np.full((8, 2, 4), 9.0)).inner_state
    got = take(store(made, empty()), fresh)
    for name, value in (("a", 7.0), ("b", 9.0)):
        real = np.array(REAL[name], bool)[:, None, None]
        want = np.where(real, made.inner_state[0][name], value)
        np.testing.assert_array_equal(got.inner_state[0][name], want)
    assert got.slots is None
    shapes = whole_shapes(empty())
    for x, y in zip(jax.tree.leaves(shapes), jax.tree.leaves(got), strict=True):
        assert x.shape == y.shape


def test_what_is_of_no_owner_stays():
    slots = {A.key: np.full((OWNERS, 16), 5, np.float32)}
    new = np.asarray(store(whole(1), empty()._replace(slots=slots)).slots[A.key])
    np.testing.assert_array_equal(new[1], 5)
    np.testing.assert_array_equal(new[0, 6:], 5)


def test_states_inside_of_others_are_found():
    outer = whole(1)._replace(other=(empty(), 3), slots=None)
    found = jax.jit(functools.partial(map_states, unpooled))({"x": outer})
    assert found["x"].other[0].slots is None
    assert found["x"].other[1] == 3
    back = jax.eval_shape(
        functools.partial(map_states, pooled_like), found, {"x": outer}
    )
    assert jax.tree.structure(back) == jax.tree.structure({"x": outer})


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn])
def test_a_label_says_where_a_slot_is(dtype):
    slot = Slot(3, 12, jnp.dtype(dtype).name, (2, 4096, 5))
    assert slot_named(jax.tree_util.DictKey(slot.label)) == slot
    assert slot_of({slot.label: 0}) == slot
    assert slot_named(jax.tree_util.DictKey("4096x5@0123abcd")) is None
    assert slot_of({slot.label: 0, "other": 1}) is None


def test_a_number_of_another_slot_is_refused():
    check_slot({A.label: A.checksum})
    with pytest.raises(ValueError, match="restored by position"):
        check_slot({A.label: B.checksum})
