"""Shared rotations are rotations of the set's matrices side by side."""

import functools

import jax
import numpy as np
import optax
import pytest
from _reference import rotations as reference
from jax.sharding import PartitionSpec as P

import optax_matrix as om
from optax_matrix.transforms import rotate, scale_by_second_moment
from optax_matrix.transforms.rotation._joint_equilibration import (
    equilibrate_rows_jointly,
    sinkhorn_jointly,
)
from optax_matrix.transforms.rotation._rotate_shared import Sets, rotate_shared

SIDES = {"a": "out", "b": "in"}
# Rows of so many signs differ in more than one.
SHAPES = {"a": (2, 4, 16), "b": (1, 20, 4)}
# The first matrix of "a" and the one of "b" share, the second of "a" is alone.
SETS = Sets({"a": np.array([0, 1]), "b": np.array([0])}, 2, {"a": (), "b": ()})


BASES = {
    "sinkhorn": (sinkhorn_jointly, reference.sinkhorn),
    "row_norm": (equilibrate_rows_jointly, reference.row_norm),
    "sign": (optax.scale_by_sign, reference.sign),
    "adam": (lambda: scale_by_second_moment(0.95), reference.two_fold_adam),
}


def _draw(rng):
    return {n: rng.standard_normal(s) for n, s in SHAPES.items()}


def _unit(x):
    return x / np.linalg.norm(x)


@pytest.mark.daily("aro", "identity", "adam-eigen", "sign-polar")
@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("policy", ["aro", "eigen", "polar", "identity"])
@pytest.mark.parametrize("name", BASES)
def test_the_set_is_one_matrix(name, policy):
    make, base = BASES[name]
    qr = om.linalg.qr_householder
    tx = rotate_shared(make(), SETS, sides=SIDES, policy=policy, qr=qr)
    # With matrices this small, M sign(M)' may be singular, and its QR not unique; with
    # these draws it is not.
    rng, states = np.random.default_rng(8), ({}, {})
    momenta = jax.tree.map(np.zeros_like, _draw(rng))
    state = tx.init(momenta)
    for _ in range(4):
        g = _draw(rng)
        momenta = {n: 0.95 * momenta[n] + 0.05 * g[n] for n in g}
        updates, state = jax.jit(tx.update)(momenta, state)
        sets = [np.hstack([g["a"][0], g["b"][0].T]), g["a"][1]]
        want = [
            reference.aro(x, s, base=base, policy=policy)
            for x, s in zip(sets, states, strict=True)
        ]
        got = [np.hstack([updates["a"][0], updates["b"][0].T]), updates["a"][1]]
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(_unit(x), _unit(y), atol=1e-12)


@pytest.mark.broad
def test_a_set_of_one_is_rotate():
    x = {"a": np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)}
    alone = Sets({"a": np.arange(3)}, 3, {"a": ()})
    shared = rotate_shared(optax.scale_by_sign(), alone, sides={"a": "out"})
    own = rotate(optax.scale_by_sign(), side="out")
    got, _ = jax.jit(shared.update)(x, shared.init(x))
    want, _ = jax.jit(own.update)(x, own.init(x))
    np.testing.assert_allclose(got["a"], want["a"], atol=2e-5)


@pytest.fixture(scope="module")
def compiled():
    tx = rotate_shared(sinkhorn_jointly(), SETS, sides=SIDES)
    return tx, jax.jit(tx.update)


@pytest.mark.broad
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_extremes_and_zeros(compiled, scale):
    x = jax.tree.map(lambda x: np.float32(scale * x), _draw(np.random.default_rng(1)))
    x["a"][1] = 0
    tx, update = compiled
    updates, state = update(x, tx.init(x))
    assert all(np.isfinite(u).all() for u in updates.values())
    assert not np.any(updates["a"][1])
    np.testing.assert_array_equal(state.rotation[1], np.eye(4))
    assert np.abs(state.rotation[0] - np.eye(4)).max() > 0.1


def _collectives(text, kind):
    return text.count(f" {kind}(") + text.count(f" {kind}-start(")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "vectors"), [("sinkhorn", 5), ("row_norm", 1)])
def test_spread_over_devices_it_is_the_same_at_a_known_price(cpus, name, vectors):
    """One all-reduce of a number, one of p x p, and those of the base, twice."""
    rng = np.random.default_rng(2)
    x = {"a": rng.standard_normal((8, 4, 5)), "b": rng.standard_normal((4, 6, 4))}
    x = jax.tree.map(np.float32, x)
    member = {"a": np.arange(8) % 2, "b": np.arange(4) % 2}
    make, _ = BASES[name]

    def step(axes, member, x):
        sets = Sets(member, 2, dict.fromkeys(x, axes))
        tx = rotate_shared(make(), sets, sides=SIDES)
        updates, state = tx.update(x, tx.init(x))
        return updates, state.rotation

    want, rotation = jax.jit(functools.partial(step, ()))(member, x)
    kinds = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((4,), ("d",), kinds, devices=cpus[:4])
    spread = jax.shard_map(
        lambda member, x: step(("d",), member, x),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=(P("d"), P()),
        check_vma=False,
    )
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    run = jax.jit(spread)
    args = jax.device_put((member, x), sharding)
    got, new = run(*args)
    np.testing.assert_allclose(new, rotation, atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, want)
    assert all(np.array_equal(s.data, new) for s in new.addressable_shards)
    lowered = run.lower(*args)
    reductions = lowered.as_text().count("stablehlo.all_reduce")
    assert reductions == 2 + 2 * vectors
    text = lowered.compile().as_text()  # The compiler may join some of them.
    assert 0 < _collectives(text, "all-reduce") <= reductions
    assert _collectives(text, "all-gather") == _collectives(text, "all-to-all") == 0


@pytest.mark.broad
def test_one_factorisation_for_each_set():
    tx = rotate_shared(sinkhorn_jointly(), SETS, sides=SIDES, qr=_counted)
    x = jax.tree.map(np.float32, _draw(np.random.default_rng(3)))
    _SEEN.clear()
    jax.eval_shape(tx.update, x, tx.init(x))
    assert _SEEN == [(2, 4, 4)]


_SEEN = []


def _counted(x, *, previous=None):
    _SEEN.append(x.shape)
    return om.linalg.qr_householder(x, previous=previous)


WRONG = [
    ({"base": None}, "`base` must be a gradient transformation"),
    ({"policy": "newton"}, "`policy` must be one of"),
    ({"qr": "householder"}, "`qr` must be a function"),
    ({"update_interval": 0}, "`update_interval` must be a positive int"),
    ({"sides": {"a": "out", "b": "both"}}, "`sides` must be one of"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_arguments_are_named_in_the_factory(arguments, message):
    options = {"base": optax.scale_by_sign(), "sets": SETS, "sides": SIDES, **arguments}
    with pytest.raises(ValueError, match=message):
        rotate_shared(**options)


def test_rotated_sides_of_two_sizes_are_refused():
    tx = rotate_shared(optax.scale_by_sign(), SETS, sides={"a": "in", "b": "in"})
    with pytest.raises(ValueError, match=r"the same size .*'a': 16, 'b': 4"):
        jax.eval_shape(tx.init, _draw(np.random.default_rng(0)))


@pytest.mark.slow
def test_a_function_as_policy_sees_the_sums_of_the_sets():
    seen = []

    def policy(side):
        seen.append([x.shape for x in side[:3]])
        return om.linalg.qr_householder(side.momentum, previous=side.rotation)

    x = jax.tree.map(jax.numpy.float32, _draw(np.random.default_rng(8)))
    base = optax.identity()
    one, other = (
        rotate_shared(base, SETS, sides=SIDES, policy=p, qr=om.linalg.qr_householder)
        for p in (policy, "eigen")
    )
    _, got = one.update(x, one.init(x))
    _, want = other.update(x, other.init(x))  # From the identity both are qr(M M').
    assert seen == [[(2, 4, 4)] * 3]
    np.testing.assert_allclose(got.rotation, want.rotation, atol=1e-5)
