"""Meshes whose axes are of several kinds: Explicit beside Auto, or Manual."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _raised import raise_warnings
from _steps import first_update
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import optax_matrix as om

EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto
MIXED = [(EXPLICIT, AUTO), (AUTO, EXPLICIT)]
SHAPES = {f"{i}/kernel": (8, 12) for i in range(4)}
SPEC = P("fsdp", "tp")


def draw(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def placed(tree, specs, kinds, cpus, sizes=(4, 2), names=("fsdp", "tp")):
    mesh = jax.make_mesh(sizes, names, kinds, devices=cpus)
    place = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    return {k: place(x, specs[k]) for k, x in tree.items()}, mesh


def assert_close(got, want, atol=2e-5):
    for key in want:
        np.testing.assert_allclose(got[key], want[key], atol=atol, err_msg=key)


@pytest.fixture(scope="module")
def alone():
    params = draw(SHAPES)
    tx = om.muon(0.01)
    return params, first_update(tx, params, params)[0]


@pytest.fixture(scope="module")
def in_eight_bits():
    params = draw({"embedding": (64, 96)})
    tx = om.adamw_8bit(0.01)
    return params, tx, first_update(tx, params, params)[0]


@pytest.mark.parametrize("kinds", MIXED, ids=["explicit-auto", "auto-explicit"])
@pytest.mark.parametrize("own", [None, "fsdp"])
def test_a_matrix_is_split_along_axes_of_both_kinds(alone, cpus, kinds, own):
    params, want = alone
    params, _ = placed(params, dict.fromkeys(SHAPES, SPEC), kinds, cpus)
    placement = own and om.owners.from_params(params, own)
    tx = om.muon(0.01, placement=placement)
    state = tx.init(params)
    got, _ = jax.jit(tx.update)(params, state, params)
    assert_close(got, want)
    assert {x.sharding.spec for x in got.values()} == {SPEC}


def test_no_state_is_said_to_be_whole_that_an_auto_axis_splits(alone, cpus):
    specs = dict.fromkeys(SHAPES, P("fsdp", None))
    params, _ = placed(alone[0], specs, (AUTO, EXPLICIT), cpus)
    tx = om.muon(0.01, placement=om.owners.from_params(params, "fsdp"))
    state = tx.init(params)
    with warnings.catch_warnings():
        raise_warnings()
        jax.jit(tx.update)(params, state, params)


MANUAL = {"sizes": (2, 2, 2), "names": ("data", "fsdp", "tp")}


@pytest.mark.daily("None")
@pytest.mark.parametrize("own", [None, "fsdp"])
def test_inside_of_data_parallelism_by_hand(alone, cpus, own):
    """A `jax.shard_map` that is Manual over one axis; types show the others."""
    params, want = alone
    specs = dict.fromkeys(SHAPES, SPEC)
    params, mesh = placed(params, specs, (EXPLICIT,) * 3, cpus, **MANUAL)
    tx = om.muon(0.01, placement=own and om.owners(own))
    key = jax.random.key(0)

    def step(grads, state, params):
        grads = jax.tree.map(lambda g: jax.lax.pmean(g, "data"), grads)
        return tx.update(grads, state, params)[0], om.initialize_matrices(params, key)

    with jax.set_mesh(mesh):
        options = {"axis_names": {"data"}, "mesh": mesh, "check_vma": own is None}
        run = jax.shard_map(step, in_specs=(P(), P(), P()), out_specs=P(), **options)
        got, drawn = jax.jit(run)(params, tx.init(params), params)
    assert_close(got, want)
    assert_close(drawn, om.initialize_matrices(alone[0], key))


def test_owners_along_manual_axes_are_refused(alone, cpus):
    specs = dict.fromkeys(SHAPES, SPEC)
    params, mesh = placed(alone[0], specs, (EXPLICIT,) * 2, cpus)
    tx = om.muon(0.01, placement=om.owners("fsdp", param_specs=specs))
    with (
        jax.set_mesh(mesh),
        pytest.raises(
            ValueError, match=r"`mesh_axes` must not be Manual, got \['fsdp'"
        ),
    ):
        jax.jit(jax.shard_map(tx.init, in_specs=SPEC, out_specs=P()))(params)


@pytest.mark.parametrize("kind", [EXPLICIT, AUTO])
@pytest.mark.parametrize("spec", [P("fsdp", None), P(None, "fsdp"), P("fsdp", "tp")])
def test_eight_bits_of_rows_that_no_block_fits(in_eight_bits, cpus, kind, spec):
    """Blocks of 256 numbers cross the rows of 96, and the shards."""
    params, tx, want = in_eight_bits
    params, _ = placed(params, {"embedding": spec}, (kind,) * 2, cpus)
    state = tx.init(params)
    codes = state.inner_state[0].mu["embedding"]
    assert codes.dtype == jnp.uint8
    assert codes.sharding.is_equivalent_to(params["embedding"].sharding, 2)
    got, _ = jax.jit(tx.update)(params, state, params)
    assert_close(got, want)


@pytest.mark.daily("kinds0")
@pytest.mark.parametrize("kinds", [*MIXED, (AUTO, AUTO), (EXPLICIT, EXPLICIT)])
def test_weights_keep_their_shardings(cpus, kinds):
    """Those of `reparameterize`, and those that `clip_qk` scales."""
    jax.clear_caches()  # JAX 0.8.1 mixes up meshes that differ in kinds of axes only.
    shapes = {"attn/query/kernel": (8, 4, 4), "attn/key/kernel": (8, 2, 4)}
    specs = {"attn/query/kernel": P("fsdp", "tp"), "attn/key/kernel": P("tp", None)}
    params, mesh = placed(draw(shapes), specs, kinds, cpus)
    poet = om.reparameterize(block=2)
    frozen, trainable = poet.split(params)
    values = np.float32([1.0, 200.0, 3.0, 400.0])
    logits = jax.device_put(values, NamedSharding(mesh, P("fsdp")))
    clip = lambda params, logits: om.clip_qk(params, {"attn": logits}, tau=100.0)
    clipped = clip(params, logits)
    want = jax.jit(clip)(draw(shapes), values)
    assert_close(clipped, want)
    for tree in (frozen.weights, poet.materialize(frozen, trainable), clipped):
        for path, x in tree.items():
            same = x.sharding.is_equivalent_to(params[path].sharding, x.ndim)
            assert same, (path, x.sharding.spec)
