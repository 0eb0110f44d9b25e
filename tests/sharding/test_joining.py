"""Blocks under `owners` compute stacks of one shape together, to the same values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _registry import RECIPES as REGISTRY
from _tiers import tiered
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix._surroundings import joining, kernels, within
from optax_matrix._surroundings.joining import jointly
from optax_matrix.linalg.devices import is_on_one_device
from optax_matrix.sharding import keep_sharding
from optax_matrix.stacks.layout import default_batch

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


class Kernel:
    """Doubles stacks, and remembers how many matrices each call was given."""

    def __init__(self):
        self.calls = []

    def __call__(self, x, *others):
        self.calls.append(len(x))
        return {"twice": 2 * x, "others": others}


def check(calls, *stacks, limit=default_batch):
    """The values are those of each stack by itself, in as many calls as expected."""
    kernel = Kernel()
    with within(limit=limit):
        out = jointly(kernel, STACKS, *stacks)
    assert kernel.calls == calls
    assert list(out) == list(STACKS)
    apart = {n: kernel(x, *(tree[n] for tree in stacks)) for n, x in STACKS.items()}
    jax.tree.map(np.testing.assert_array_equal, *jax.tree.map(_plain, (out, apart)))


def _plain(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def test_stacks_of_one_shape_are_one():
    check([3, 2])


def test_or_not():
    check([2, 1, 2], limit=None)  # Not allowed: arrays may not be whole.
    check([2, 1, 2], limit=lambda *_: 2)  # Too many.
    kinds = {"long": None, "short": jnp.ones(1), "other": None}
    check([2, 1, 2], kinds)


@pytest.mark.parametrize(("most", "calls"), [(5, [5]), (3, [2, 3]), (2, [2, 2, 1])])
def test_polar_factors_are_joined_within_the_bound_of_a_stack(most, calls):
    """A larger stack would be a copy, and its first result would wait for all."""
    kernel = lambda x: found.append(len(x)) or 2 * x
    found = []
    with within(limit=lambda *_: most):
        doubled = kernels.on_real_matrices(kernel, STACKS, transposable=True)
    assert found == calls
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(2 * x, y), STACKS, doubled)


@pytest.mark.broad
def test_what_belongs_to_matrices_is_joined_too():
    state = {n: {"mu": x + 1, "at": x[:, 0, 0] > 5} for n, x in STACKS.items()}
    split = lambda x: jax.random.split(jax.random.key(0), len(x))
    check([3, 2], state, {n: split(x) for n, x in STACKS.items()})


@pytest.mark.parametrize(
    "values",
    [
        {name: jnp.zeros(()) for name in STACKS},
        {"long": jnp.zeros((3, 2)), "short": jnp.zeros(1), "other": jnp.zeros(2)},
        {"long": jnp.zeros((2, 5)), "short": jnp.zeros((1, 4)), "other": jnp.zeros(2)},
        {"long": jnp.zeros(2), "short": jnp.zeros(1, bool), "other": jnp.zeros(2)},
    ],
    ids=["scalars", "not per matrix", "of other shapes", "of other types"],
)
def test_values_that_cannot_be_joined_keep_stacks_apart(values):
    check([2, 1, 2], values)


@pytest.mark.broad
def test_a_transformation_inside_a_joined_block_finds_its_stacks_by_name():
    """Only kernels are joined: what runs inside a block sees every stack."""
    seen = []

    def look(updates, state, params=None):
        del params
        seen.append(list(updates))
        return updates, state

    inner = optax.GradientTransformation(lambda _: (), look)
    tx = om.rotate(inner, policy="eigen")
    with within(limit=default_batch):
        jax.eval_shape(lambda x: tx.update(x, tx.init(x)), STACKS)
    assert seen == [sorted(STACKS)]


def compare(tx, mesh, monkeypatch):
    """Moves as it does with stacks apart; returns the ratio of the programs' sizes."""

    def run():
        put = lambda tree: {
            path: jax.device_put(x, NamedSharding(mesh, SPECS[path[2:]]))
            for path, x in tree.items()
        }
        update = jax.jit(lambda grads, state: tx.update(grads, state))
        first, *grads = map(put, gradients(3))
        lowered = update.lower(first, state := tx.init(first))
        run = lowered.compile()
        for g in (first, *grads):
            out, state = run(g, state)
        return out, state, len(lowered.as_text())

    with jax.set_mesh(mesh):
        out, state, size = run()
        monkeypatch.setattr(joining, "_joined", lambda stacks: [[n] for n in stacks])
        apart, apart_state, apart_size = run()
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, out, apart)
    jax.tree.map(close, state, apart_state)
    return size / apart_size


KINDS = [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.slow)]


def recipe(name, **options):
    options |= {"rank": 2} if name in ("galore", "alice", "sumo") else {}
    return getattr(om, f"scale_by_{name}")(**options)


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_joined_stacks_move_as_they_do_apart(name, kind, cpus, monkeypatch):
    mesh = jax.make_mesh((2,), ("a",), (kind,), devices=cpus[:2])
    place = om.owners("a", param_specs={path: SPECS[path[2:]] for path in LEAVES})
    assert compare(recipe(name, placement=place), mesh, monkeypatch) < 0.9


@pytest.mark.broad
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", tiered(RECIPES))
def test_one_device_joins_what_is_renewed(name, kind, cpus, monkeypatch):
    """Polar factors stay apart: to join their stacks would copy them in every step."""
    mesh = jax.make_mesh((1,), ("a",), (kind,), devices=cpus[:1])
    ratio = compare(recipe(name), mesh, monkeypatch)
    assert ratio == 1 if name in ("muon", "aurora") else ratio < 0.9


def moved(name, monkeypatch, alone):
    """Parameters after three steps of a recipe, as one device runs it or several."""
    monkeypatch.setattr(keep_sharding, "is_on_one_device", lambda _: alone)
    shapes = {"q": (6, 6), "up": (6, 7), "down": (7, 6), "layers": (5, 6, 7), "b": (3,)}
    rng = np.random.default_rng(0)
    draw = lambda: {n: jnp.float32(rng.standard_normal(s)) for n, s in shapes.items()}
    # A leaf has more matrices than a stack should: it stays whole.
    tx, params = REGISTRY[name](1e-2, max_batch=2), draw()
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(3):
        updates, state = update(draw(), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


@pytest.mark.daily("galore")
@pytest.mark.broad
@pytest.mark.parametrize("name", [n for n in REGISTRY if n != "alice-carry"])
def test_one_device_moves_as_several_do(name, monkeypatch):
    """All tests see eight devices, and users often one."""
    one, several = (moved(name, monkeypatch, alone) for alone in (True, False))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, one, several)


def test_stacks_above_the_bound_stay_whole_on_one_device():
    """A kernel that gains from large stacks gets them."""
    seen = []
    kernel = lambda x: seen.append(x.shape) or x
    with within(limit=lambda *_: 2, alone=True):
        kernels.on_real_matrices(kernel, {"a": jnp.ones((5, 3, 4))})
    assert seen == [(5, 3, 4)]


def test_a_mesh_in_the_context_is_more_than_one_device(cpus, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    mesh = jax.make_mesh((2,), ("a",), (AxisType.Auto,), devices=cpus[:2])
    found = []
    look = lambda x: found.append(is_on_one_device(x)) or x
    jax.eval_shape(look, jnp.ones(2))
    with jax.set_mesh(mesh):
        jax.eval_shape(look, jax.ShapeDtypeStruct((2,), jnp.float32))
    assert found == [True, False]


@pytest.mark.slow
def test_more_devices_without_owners_join_nothing(cpus, monkeypatch):
    mesh = jax.make_mesh((2,), ("a",), (AxisType.Auto,), devices=cpus[:2])
    assert compare(recipe("galore"), mesh, monkeypatch) == 1
