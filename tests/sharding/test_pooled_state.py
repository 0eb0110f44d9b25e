"""Groups share slots of state: the same steps with fewer bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _meshes import KINDS
from _owned import given, normal, on_mesh
from _pooled import (
    SHAPES,
    TREES,
    assert_close,
    assert_same,
    bytes_held,
    make_mesh,
    muoneq,
    paths_of,
    run,
    soap,
    specs_of,
)
from _registry import RECIPES
from jax.sharding import NamedSharding, PartitionSpec as P

import optax_matrix as om
from optax_matrix.stacks.slots import slots_in

pytestmark = pytest.mark.broad


@pytest.mark.daily("few-auto")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree", TREES)
def test_the_same_steps_with_less_state(tree, kind, cpus):
    mesh, shapes = make_mesh(kind, cpus), TREES[tree]
    apart, pooled = (run(soap, mesh, shapes, pool=x) for x in (False, True))
    assert_same(pooled, apart)
    assert len(list(slots_in(pooled[1]))) > 3
    assert not apart[1].slots
    held = [bytes_held(state) for _, state, _ in (pooled, apart)]
    assert held[0] < 0.8 * held[1]
    params, state, tx = pooled
    shardings = {p: NamedSharding(mesh, s) for p, s in specs_of(shapes).items()}
    assert om.sharding.plan(tx, params, shardings).state_bytes == held[0]
    specs = om.state_specs(tx, params, shardings)
    for x, spec in zip(jax.tree.leaves(state), jax.tree.leaves(specs), strict=True):
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)


def test_on_two_axes_of_which_one_has_experts(cpus):
    """All are owners; along the axis of experts nothing is sent."""
    shapes = {
        f"{name}/{i}/kernel": SHAPES[f"{name}/0/kernel"]
        for name in "abc"
        for i in range(2)
    }
    shapes |= {"e/kernel": (2, 16, 8), "f/kernel": (2, 8, 24)}
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), (KINDS["auto"],) * 2, devices=cpus)
    specs = {p: P("tp", "fsdp") if p[0] in "ef" else P("fsdp", "tp") for p in shapes}
    params, grads = (on_mesh(normal(shapes, seed), specs, mesh) for seed in (0, 1))
    found, held = [], []
    for pool in (False, True):
        at = given(mesh, specs)
        tx = muoneq(om.owners(("fsdp", "tp"), param_specs=at, pool_state=pool))
        state, step = tx.init(params), jax.jit(tx.update)
        for _ in range(2):
            updates, state = step(grads, state, params)
        found.append((updates, om.to_portable(state, params)))
        held.append(bytes_held(state))
    assert_close(*found)
    assert held[1] < 0.7 * held[0]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe(name, cpus):
    """Of some recipes all state is small, and nothing is in slots. In float64."""
    mesh = make_mesh("auto", cpus)
    make = lambda placement: RECIPES[name](0.01, placement=placement)
    start = normal(SHAPES, 0, np.float64)
    apart, pooled = (
        run(make, mesh, SHAPES, pool=x, start=start) for x in (False, True)
    )
    assert_same(pooled, apart)
    assert bytes_held(pooled[1]) <= bytes_held(apart[1])


def test_state_of_an_owner_without_a_matrix_stays_as_init_makes_it(cpus):
    """Slots are zeros behind the numbers of a matrix, and where nobody has one."""
    _, state, _ = run(muoneq, make_mesh("auto", cpus), SHAPES, pool=True)
    (slots,) = state.slots.values()
    sizes = np.count_nonzero(np.asarray(slots), axis=1)
    assert sorted(sizes.tolist()) == [0, 64, 64, 64, 128, 128, 192, 192]


def in_bits(placement, **options):
    return om.muon(0.02, placement=om.quantized(placement, min_size=8, **options))


def multi_steps(placement):
    return optax.MultiSteps(muoneq(placement), 2).gradient_transformation()


def injected(placement):
    make = om.transforms.inject_hyperparams(om.muoneq)
    return make(learning_rate=0.1, placement=placement)


def in_pairs(placement):
    """The matrices of `c` with those of `a`; those of `b` have none."""
    both = lambda a, b: (a.update + 1, b.update / 2)
    block = om.transforms.on_pairs(both, otherwise=om.transforms.momentum(0.5))
    chain = optax.chain(om.transforms.momentum(0.9), block)
    find = lambda path: path.replace("c/", "a/") if path[0] == "c" else None
    return om.on_matrices(chain, placement=placement, pairs=find, probe=False)


AROUND = {
    "eight bits": (in_bits, {}),
    "four bits": (functools.partial(in_bits, bits=4, seed=3), {}),
    "MultiSteps": (multi_steps, {}),
    "injected": (injected, {}),
    "poet": (lambda p: om.poet(0.02, block=4, placement=p), {}),
    "hyperball": (lambda p: om.muonh(0.02, placement=p), {}),
    "pairs": (in_pairs, {}),
    "teams": (muoneq, {"teams": 2}),
    "bfloat16": (muoneq, {"wire_dtype": jnp.bfloat16}),
    "host": (soap, {"memory": "pinned_host"}),
}


@pytest.mark.daily("eight bits")
@pytest.mark.parametrize("name", AROUND)
def test_whatever_is_around(name, cpus):
    make, options = AROUND[name]
    mesh = make_mesh("auto", cpus)
    apart, pooled = (run(make, mesh, SHAPES, pool=x, **options) for x in (False, True))
    assert_same(pooled, apart)
    assert any("slot_" in path for path in map(str, paths_of(pooled[1])))
    if name == "host":
        kinds = {x.sharding.memory_kind for x in pooled[1].slots.values()}
        assert kinds == {"pinned_host"}


def test_the_arguments_of_a_step_are_donated_and_scanned(cpus):
    """The structure, shapes and types of the state stay."""
    mesh, specs = make_mesh("auto", cpus), specs_of(SHAPES)
    tx = soap(om.owners("fsdp", pool_state=True, param_specs=given(mesh, specs)))
    params = on_mesh(normal(SHAPES, 0), specs, mesh)
    state = tx.init(params)
    types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype.name), tree)
    assert types(jax.eval_shape(tx.init, params)) == types(state)
    body = lambda state, _: (tx.update(params, state, params)[1], ())
    scanned = jax.jit(lambda state: jax.lax.scan(body, state, length=2)[0])
    step = jax.jit(lambda state: body(state, ())[0], donate_argnums=0)
    want = scanned(state)
    portable = om.to_portable(want, params)
    for _ in range(2):
        state = step(state)
    for key, x in om.to_portable(state, params).items():
        np.testing.assert_allclose(x, portable[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"pad_to": 8}, {}], ids=["pad_to", "inside"])
def test_where_nothing_is_shared(options, cpus):
    kinds = (KINDS["auto"],) * 2
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), kinds, devices=cpus)
    inside = P("fsdp", None if options else "tp")
    at = dict.fromkeys(SHAPES, NamedSharding(mesh, inside))
    owners = om.owners("fsdp", param_specs=at, pool_state=True, **options)
    state = muoneq(owners).init(jax.device_put(normal(SHAPES, 0), at))
    assert state.slots is None


def test_bytes_are_named(cpus):
    params, state, tx = run(soap, make_mesh("auto", cpus), SHAPES, pool=True, steps=0)
    held = om.diagnostics.state_bytes(tx, params)
    assert held.bytes == sum(x.nbytes for x in jax.tree.leaves(state))
    assert not any("slot_" in f.field for f in held.fields)


def test_an_argument_that_is_no_bool():
    with pytest.raises(ValueError, match="`pool_state` must be True or False, got 1"):
        om.owners("fsdp", pool_state=1)
