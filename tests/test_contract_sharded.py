"""Every recipe on sharded parameters, in both modes and by either placement."""

import functools

import jax
import numpy as np
import optax
import pytest
from _meshes import collectives, put
from _registry import RECIPES, tree
from _tiers import KINDS, OPTIMIZED, QUICK
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

# The rate is 0.01. With XLA's optimizations on, a program for eight devices rounds
# differently than one for one device, and some methods divide by small numbers: after
# three steps SOAP's parameters are 2e-4 apart (2e-11 in float64).
ROUNDING = 5e-4 if OPTIMIZED else 1e-6

SHAPES = {
    "rows": {"kernel": (8, 4)},
    "columns": {"kernel": (4, 8)},
    "both": {"kernel": (8, 8), "bias": (8,)},
    "layers": {"kernel": (4, 4, 8)},
    "embed": {"embedding": (8, 4)},
}
SPECS = {
    "rows": {"kernel": P("fsdp", None)},
    "columns": {"kernel": P(None, "fsdp")},
    "both": {"kernel": P("fsdp", "tp"), "bias": P("tp")},
    "layers": {"kernel": P("fsdp", None, "tp")},
    "embed": {"embedding": P("fsdp", "tp")},
}


@pytest.fixture
def mesh(request, cpus):
    kind = {"explicit": AxisType.Explicit, "auto": AxisType.Auto}[request.param]
    return jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(kind,) * 2, devices=cpus)


def every_recipe(**daily):
    """Every recipe in both modes, slow but for those given for a mode."""
    return pytest.mark.parametrize(
        ("name", "mesh"),
        [
            pytest.param(name, mode, marks=[pytest.mark.slow][name in daily[mode] :])
            for mode in ("explicit", "auto")
            for name in RECIPES
        ],
        indirect=["mesh"],
    )


@pytest.mark.broad
@every_recipe(explicit=QUICK, auto={"muon"})
def test_sharded_equals_replicated(name, mesh):
    tx = RECIPES[name](0.01)
    # SOAP's first bases are of one gradient. Where its first rows nearly depend on each
    # other, directions without range hold noise of full size, as with seed 1.
    seed = 3 if name == "soap" else 1
    params, grads = tree(0, shapes=SHAPES), tree(seed, shapes=SHAPES)
    want, _ = jax.jit(tx.update)(grads, tx.init(params), params)

    is_spec = lambda x: isinstance(x, P)
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), SPECS, is_leaf=is_spec)
    put = lambda x: jax.tree.map(jax.device_put, x, shardings)
    params, grads = put(params), put(grads)
    state = tx.init(params)

    def step(params, grads, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), updates, state

    explicit = AxisType.Explicit in mesh.axis_types
    step = jax.jit(step, out_shardings=None if explicit else (shardings,) * 2 + (None,))
    new, updates, _ = step(params, grads, state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=ROUNDING),
        updates,
        want,
    )
    for x, old in zip(jax.tree.leaves(new), jax.tree.leaves(params), strict=True):
        assert x.sharding.is_equivalent_to(old.sharding, x.ndim)


OWNED_SHAPES = {
    "both": {"kernel": (8, 4), "bias": (8,)},
    "layers": {"kernel": (4, 6, 4)},
    "embed": {"embedding": (8, 4)},
}
OWNED_SPECS = {
    "both": {"kernel": P("fsdp", "tp"), "bias": P("tp")},
    "layers": {"kernel": P("fsdp", "tp", None)},
    "embed": {"embedding": P("fsdp", "tp")},
}


NEED_PARAMETERS = ("poet", "oft", "muonh")


def _run(tx, params, noise, state):
    def step(params, noise, state):
        grads = jax.tree.map(lambda w, n: 0.1 * w + n, params, noise)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    step, path = jax.jit(step).lower(params, noise, state).compile(), []
    for _ in range(3):
        params, state = step(params, noise, state)
        path.append(params)
    return step, path, state


@functools.cache
def _replicated(name):
    params, noise = (tree(seed, shapes=OWNED_SHAPES) for seed in (0, 1))
    tx = RECIPES[name](0.01)
    return jax.tree.map(np.asarray, _run(tx, params, noise, tx.init(params))[1])


# Dion and Shampoo take long to compile: in `make test-slow`.
@pytest.mark.broad
@every_recipe(explicit=KINDS - {"dion", "shampoo"}, auto=QUICK)
def test_owners_equal_replicated(name, mesh):
    is_spec = lambda x: isinstance(x, P)
    sharding = functools.partial(NamedSharding, mesh)
    shardings = jax.tree.map(sharding, OWNED_SPECS, is_leaf=is_spec)
    params, noise = (put(tree(seed, shapes=OWNED_SHAPES), shardings) for seed in (0, 1))
    explicit = AxisType.Explicit in mesh.axis_types
    given = None if explicit else shardings
    tx = RECIPES[name](0.01, placement=om.owners(("fsdp", "tp"), param_specs=given))

    # Optax makes counters on one device; `state_specs` says where they belong.
    state = tx.init(params)
    places = jax.tree.map(sharding, om.state_specs(tx, params, shardings))
    assert jax.tree.structure(places) == jax.tree.structure(state)
    state = jax.tree.map(jax.device_put, state, places)
    step, path, new = _run(tx, params, noise, state)

    # Eight devices do what one does, matrix by matrix: a few ulp of f32 differ.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=ROUNDING)
    for got, want in zip(path, _replicated(name), strict=True):
        jax.tree.map(close, got, want)
    lies_as = lambda x, sharding: x.sharding.is_equivalent_to(sharding, x.ndim)
    assert jax.tree.all(jax.tree.map(lies_as, path[-1], shardings))
    assert jax.tree.all(jax.tree.map(lies_as, new, places))
    assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, state)

    # Two for each of the two groups, and one for parameters that the method needs;
    # AdamW's leaves need none, Scion's the norm of a bias that is spread out.
    ways = 3 if name.startswith(NEED_PARAMETERS) else 2
    norms = {"all-reduce": 2} if name == "scion" else {}
    assert collectives(step) == {"all-to-all": 2 * ways} | norms
