"""Recipes whose matrices keep their moments in eight bits, wherever they live."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _owned import normal, on_mesh, rollout
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

SHAPES = {"a/0": (8, 12), "a/1": (8, 12), "b": (8, 8), "bias": (8,)}
SPECS = {
    "a/0": P("fsdp", "tp"),
    "a/1": P("fsdp", "tp"),
    "b": P("tp", None),
    "bias": P("tp"),
}
# Small, so that the short matrices of a test have several blocks.
SMALL = {"block_size": 16, "min_size": 64}


def momentum(**options):
    """Two moments of a matrix, and a scalar beside them."""
    tx = optax.scale_by_adam(b1=0.9, b2=0.99)
    return om.on_matrices(tx, placement=om.quantized(**(SMALL | options)))


def named(tree, field):
    """The arrays of a state whose path has a name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    keys = lambda k: [str(getattr(x, "key", getattr(x, "name", x))) for x in k]
    return {"/".join(keys(k)): x for k, x in leaves if field in keys(k)}


@pytest.mark.broad
def test_blocks_stay_inside_matrices():
    params = normal(SHAPES, 0)
    state = momentum().init(params)
    kinds = lambda f: {(x.shape, x.dtype.name) for x in named(state, f).values()}
    assert kinds("mu") == {
        ((2, 12, 8), "uint8"),
        ((1, 8, 8), "uint8"),
        ((2, 6), "float32"),  # 12 x 8 in blocks of 16
        ((1, 4), "float32"),
    }


@pytest.mark.slow
def test_a_matrix_moves_the_same_whoever_shares_its_stack():
    for seed in (None, 0):
        tx = momentum(seed=seed)
        alone, _, _ = rollout(tx, *({"b": normal(SHAPES, i)["b"]} for i in (0, 1)))
        with_more = {"z": (8, 8), "c": (8, 8)} | SHAPES
        trees = [normal(with_more, 2 + i) for i in (0, 1)]
        trees = [t | {"b": normal(SHAPES, i)["b"]} for i, t in enumerate(trees)]
        more, _, _ = rollout(tx, *trees)
        np.testing.assert_allclose(more[-1]["b"], alone[-1]["b"], 1e-5, 1e-6)


@pytest.mark.broad
def test_equal_matrices_are_rounded_apart():
    same = {"a/0": normal(SHAPES, 0)["b"], "a/1": normal(SHAPES, 0)["b"]}
    for seed in (None, 0):
        tx = momentum(seed=seed)
        _, state = jax.jit(tx.update)(same, tx.init(same))
        (codes,) = (x for k, x in named(state, "mu").items() if "scales" not in k)
        assert bool((codes[0] == codes[1]).all()) == (seed is None)


@functools.cache
def on_one_device():
    trees = [normal(SHAPES, seed) for seed in (0, 1)]
    path, state, _ = rollout(momentum(seed=0), *trees)
    return trees, path, state


@pytest.mark.daily("owners-AxisType.Auto")
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize(
    "owned",
    [
        pytest.param(True, id="owners", marks=pytest.mark.broad),
        pytest.param(False, id="as sharded", marks=pytest.mark.slow),
    ],
)
def test_on_a_mesh(kind, owned, cpus):
    """Codes lie as `state_specs` says, and the results are those of one device."""
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (kind, kind), devices=cpus)
    shardings = {k: NamedSharding(mesh, spec) for k, spec in SPECS.items()}
    given = None if kind == AxisType.Explicit else shardings
    owners = om.owners(("fsdp", "tp"), param_specs=given) if owned else None
    trees, want, whole = on_one_device()
    tx = momentum(placement=owners, seed=0)
    sharded = [on_mesh(tree, SPECS, mesh) for tree in trees]
    state = tx.init(sharded[0])
    places = om.state_specs(tx, sharded[0], shardings)
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), places)
    state = jax.tree.map(jax.device_put, state, places)
    got, new, _ = rollout(tx, *sharded, state=state)
    for a, b in zip(got, want, strict=True):
        for path, x in b.items():
            # A sum in another order may fall to the neighbouring code.
            close = np.isclose(a[path], x, rtol=1e-5, atol=1e-6)
            assert close.mean() > 0.98, path
            np.testing.assert_allclose(a[path], x, atol=0.05)
    if owned or kind == AxisType.Explicit:
        lies_as = lambda x, sharding: x.sharding.is_equivalent_to(sharding, x.ndim)
        assert jax.tree.all(jax.tree.map(lies_as, new, places))
    spread = [p.spec for path, p in named(places, "mu").items() if "scales" in path]
    assert spread
    if owned:
        assert all(spec[0] == ("fsdp", "tp") for spec in spread)
    # Portable: by path, whole, without what fills up the owners.
    here, there = (om.to_portable(s, trees[0]) for s in (new, whole))
    assert {k: np.shape(v) for k, v in here.items()} == {
        k: np.shape(v) for k, v in there.items()
    }
    codes = "inner_state/mu/b"
    assert here[codes].dtype == np.uint8
    assert np.mean(np.asarray(here[codes]) == np.asarray(there[codes])) > 0.95


@pytest.mark.broad
def test_restored_under_another_name():
    old, noise = (normal(SHAPES, seed) for seed in (0, 1))
    tx = momentum()
    _, state, _ = rollout(tx, old, noise)
    rename = lambda tree: {k.replace("a/", "c/"): x for k, x in tree.items()}
    portable = om.to_portable(state, old)
    new = rename(old)
    filled = om.from_portable(portable, tx.init(new), new, rename={"a": "c"})
    want, _, _ = rollout(tx, old, noise, steps=1, state=state)
    got, _, _ = rollout(tx, new, rename(noise), steps=1, state=filled)
    jax.tree.map(np.testing.assert_array_equal, got[-1], rename(want[-1]))


@pytest.mark.slow
def test_recipes_take_it():
    """8-bit Muon and 8-bit GaLore beside themselves; the rest by 8-bit AdamW."""
    shapes = {"up": {"kernel": (64, 80)}, "embed": {"embedding": (128, 64)}}
    rng = np.random.default_rng(0)
    draw = lambda: jax.tree.map(
        lambda s: jnp.asarray(rng.standard_normal(s), jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    params, stream = draw(), [draw() for _ in range(4)]
    galore = functools.partial(om.galore, rank=64)
    for recipe, quantized_, kept in ((om.muon, 1, 0), (galore, 2, 1)):
        plain = recipe(1e-2, other=optax.adamw(1e-2))
        stored = recipe(1e-2, placement=om.quantized(), other=om.adamw_8bit(1e-2))
        updates = []
        for tx in (plain, stored):
            state, update = tx.init(params), jax.jit(tx.update)
            for grads in stream:
                new, state = update(grads, state, params)
            updates.append(new)
        for want, got in zip(*map(jax.tree.leaves, updates), strict=True):
            cosine = jnp.vdot(want, got) / jnp.linalg.norm(want) / jnp.linalg.norm(got)
            assert cosine > 0.99
        bytes_ = [x.dtype.itemsize for x in jax.tree.leaves(state) if x.size >= 4096]
        assert bytes_.count(1) == quantized_ + 2  # And Adam's of the embedding.
        assert bytes_.count(4) == kept  # GaLore's basis.


def test_mistakes_are_told():
    with pytest.raises(ValueError, match="`block_size` must be a positive int"):
        om.quantized(block_size=0)
    with pytest.raises(ValueError, match="`placement` must be"):
        om.quantized("fsdp")
    with pytest.raises(ValueError, match="`learning_rate` must be a number"):
        om.adamw_8bit(None)
    for name, value in (("b2", 1.0), ("eps", -1.0), ("weight_decay", -0.1)):
        with pytest.raises(ValueError, match=f"`{name}` must"):
            om.adamw_8bit(1e-3, **{name: value})
