"""Blocks under `owners` compute stacks of one shape together, to the same values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _tiers import tiered
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._surroundings import joining, within
from optax_matrix._surroundings.joining import jointly, of_stack
from optax_matrix.stacks.groups import default_batch

# Nearly square: one gradient has to determine the eigenvectors of both sides.
SHAPES = {"q": (6, 6), "o": (6, 6), "up": (6, 7), "down": (7, 6)}
SPECS = {"q": P("a"), "o": P(None, "a"), "up": P("a"), "down": P(None, "a")}


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            n: rng.standard_normal(shape).astype(np.float32)
            for n, shape in LEAVES.items()
        }
        for _ in range(steps)
    ]


RECIPES = ["muon", "aro", "galore", "shampoo", "soap", "alice", "sumo", "aurora"]
LEAVES = {f"{layer}/{n}": shape for layer in range(2) for n, shape in SHAPES.items()}
STACKS = {
    "long": jnp.arange(24.0).reshape(2, 3, 4),
    "short": jnp.ones((1, 3, 4)),
    "other": jnp.ones((2, 4, 3)),
}
SAME = dict.fromkeys(STACKS, "")


def seen(stacks, kinds, *args):
    """The names that a function under `jointly` is given."""
    del kinds, args
    seen.names = list(stacks)
    return jax.tree.map(lambda x: 2 * x, stacks)


def test_stacks_of_one_shape_are_one():
    with within(limit=default_batch):
        out = jointly(seen, STACKS, SAME)
    assert seen.names == ["long + short", "other"]
    assert list(out) == list(STACKS)
    jax.tree.map(np.testing.assert_array_equal, out, seen(STACKS, SAME))


@pytest.mark.parametrize(
    ("limit", "kinds"),
    [
        (None, SAME),
        (lambda *_: 2, SAME),
        (default_batch, {"long": "a", "short": "b", "other": "a"}),
    ],
    ids=["not allowed", "too many", "of two kinds"],
)
def test_or_not(limit, kinds):
    with within(limit=limit):
        jointly(seen, STACKS, kinds)
    assert seen.names == list(STACKS)


@pytest.mark.parametrize(
    "state",
    [
        {name: jnp.zeros(()) for name in STACKS},
        {"long": jnp.zeros(2)},
        {"long": jnp.zeros((3, 2)), "short": jnp.zeros(1), "other": jnp.zeros(2)},
    ],
    ids=["scalars", "of one stack", "not per matrix"],
)
def test_state_that_cannot_be_joined_keeps_stacks_apart(state):
    with within(limit=default_batch):
        jointly(seen, STACKS, SAME, state)
    assert seen.names == list(STACKS)


def test_state_is_joined_wherever_it_is():
    state = (jnp.zeros(()), {"mu": {n: (x, x[:, 0, 0]) for n, x in STACKS.items()}})

    def add(stacks, kinds, state):
        del kinds
        count, trees = state
        assert trees["mu"].keys() == stacks.keys()
        new = {n: (x + 1, y + 2) for n, (x, y) in trees["mu"].items()}
        return stacks, (count + 1, {"mu": new})

    with within(limit=default_batch):
        together = jointly(add, STACKS, SAME, state)
    jax.tree.map(np.testing.assert_array_equal, together, add(STACKS, SAME, state))


def test_what_was_given_by_name():
    ids = {name: np.arange(len(x)) for name, x in STACKS.items()}
    sides = {"long": "out", "short": "in", "other": "in"}

    def use(values, stacks, kinds):
        del kinds
        seen.names = list(stacks)
        return {name: of_stack(values, name) for name in stacks}

    with within(limit=default_batch):
        found = jointly(functools.partial(use, ids), STACKS, SAME)
        jax.tree.map(np.testing.assert_array_equal, found, ids)
        assert seen.names == ["long + short", "other"]
        assert jointly(functools.partial(use, sides), STACKS, SAME) == sides
        assert seen.names == list(STACKS)  # Sides differ: nothing is joined.
        own = lambda stacks, _: {name: ids[name] for name in stacks}
        jax.tree.map(np.testing.assert_array_equal, jointly(own, STACKS, SAME), ids)
        with pytest.raises(KeyError, match="unknown"):
            jointly(lambda *_: ids["unknown"], STACKS, SAME)
    with pytest.raises(KeyError):
        of_stack(sides, "long + none")


@pytest.mark.broad
@pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_joined_stacks_move_as_they_do_apart(name, kind, cpus, monkeypatch):
    mesh = jax.make_mesh((2,), ("a",), (kind,), devices=cpus[:2])
    place = om.owners("a", param_specs={path: SPECS[path[2:]] for path in LEAVES})
    options = {"rank": 2} if name in ("galore", "alice", "sumo") else {}
    tx = getattr(om, f"scale_by_{name}")(placement=place, **options)

    def run():
        put = lambda tree: {
            path: jax.device_put(x, NamedSharding(mesh, SPECS[path[2:]]))
            for path, x in tree.items()
        }
        update = jax.jit(lambda grads, state: tx.update(grads, state))
        first, *grads = map(put, gradients(3))
        text = update.trace(first, state := tx.init(first)).lower().as_text()
        for g in (first, *grads):
            out, state = update(g, state)
        return out, state, len(text)

    with jax.set_mesh(mesh):
        out, state, size = run()
        monkeypatch.setattr(joining, "_classes", lambda *_: None)
        apart, apart_state, apart_size = run()
    assert size < 0.9 * apart_size
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, out, apart)
    jax.tree.map(close, state, apart_state)
