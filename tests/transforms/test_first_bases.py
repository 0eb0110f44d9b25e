"""Matrices whose gradients begin with zeros or NaN, or whose state was added later."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.transforms import subspace_basis
from optax_matrix.transforms.low_rank._subspace_bases import gaussian_basis, svd_basis

SHAPE = (6, 8)
STREAM = np.float32(gaussian(8, 2, *SHAPE, seed=3) + gaussian(2, *SHAPE, seed=4))
AWAY = range(2)  # The first matrix has no gradients at these updates.


def late():
    grads = STREAM.copy()
    grads[0, 0], grads[1, 0, 2, 3] = 0, np.nan
    return jnp.asarray(grads)


def run(tx, grads, name="w"):
    step = jax.jit(lambda g, s: tx.update({name: g}, s))
    state, path = tx.init({name: grads[0]}), []
    for g in grads:
        updates, state = step(g, state)
        path.append((np.asarray(updates[name]), state))
    return path


WAYS = [("randomized", "carry"), ("exact", "keep"), ("exact", "reset")]
BROAD = [pytest.param(*way, marks=pytest.mark.broad) for way in WAYS]


@pytest.mark.slow
@pytest.mark.parametrize(("start", "transport"), [("exact", "carry"), *BROAD])
def test_a_first_basis_comes_with_the_first_gradient(start, transport):
    """Its neighbour's stays; what it becomes is what it would be without the wait."""
    tx = om.project_low_rank(
        optax.ema(0.9, debias=False),
        rank=2,
        basis=subspace_basis(0.9, switch="none", start=start),
        update_interval=5,
        transport=transport,
    )
    path = run(tx, late())
    bases = np.stack([np.asarray(s.basis["w"].vectors) for _, s in path])
    assert not bases[AWAY, 0].any()
    assert not np.stack([u for u, _ in path])[AWAY, 0].any()
    moved = np.abs(np.diff(bases, axis=0)).max((2, 3)) > 0
    assert np.flatnonzero(moved[:, 0]).tolist() == [1, 3]  # At updates 3 and 5.
    assert np.flatnonzero(moved[:, 1]).tolist() == [3]
    fresh = run(tx, jnp.asarray(STREAM[2:4]))
    for (got, _), (want, _) in zip(path[2:4], fresh, strict=True):
        np.testing.assert_allclose(got[0], want[0], atol=1e-5)
    # The neighbour has not noticed: the same as without it.
    alone = run(tx, jnp.asarray(STREAM[:, 1:]))
    for (got, _), (want, _) in zip(path, alone, strict=True):
        np.testing.assert_allclose(got[1], want[0], atol=1e-5)


@pytest.mark.slow
def test_an_added_layer_does_not_wait_for_the_next_renewal():
    trees = [{"a": x[0], "b": x[1]} for x in jnp.asarray(STREAM)]
    first = [{"a": x["a"]} for x in trees]
    for tx in (om.scale_by_galore(rank=2), om.scale_by_ldadam(rank=2)):
        update, state = jax.jit(tx.update), tx.init(first[0])
        for g in first[:3]:
            _, state = update(g, state)
        portable = om.to_portable(state, first[0])
        fresh = tx.init(trees[0])
        state = om.from_portable(portable, fresh, trees[0], missing="init")
        for g in trees[3:6]:
            updates, state = update(g, state)
        size = float(jnp.linalg.norm(updates["b"]))
        assert 0.3 < size / float(jnp.linalg.norm(updates["a"])) < 3


@pytest.mark.broad
def test_moments_of_other_stacks_stay_when_one_is_renewed():
    """Of bases that are not orthonormal, U'U would change them."""
    tx = om.project_low_rank(
        optax.trace(1.0),
        rank=3,
        basis=gaussian_basis(stored=True),
        update_interval=4,
        stagger=True,
        transport="carry",
    )
    zero = {"a": np.zeros(SHAPE, np.float32), "b": np.zeros(SHAPE, np.float32)}
    start = {"a": STREAM[0, 0], "b": STREAM[0, 1]}
    update = jax.jit(tx.update)
    _, state = update(start, tx.init(zero))
    held = state.inner_state.trace
    for _ in range(3):  # Renewals without gradients.
        _, state = update(zero, state)
    for name in zero:
        np.testing.assert_array_equal(state.inner_state.trace[name], held[name])
    old = state.basis["a"].vectors
    for _ in range(4):
        _, state = update(start | {"b": zero["b"]}, state)
        np.testing.assert_array_equal(state.inner_state.trace["b"], held["b"])
    assert np.abs(state.basis["a"].vectors - old).max() > 0.1


def test_a_zero_gradient_does_not_ask_for_a_renewal():
    """Its coordinates are small, but its basis may not change."""
    searches = []

    def counted(subspace):
        jax.debug.callback(lambda: searches.append(None))
        return jnp.linalg.qr(subspace.gradient)[0][..., : subspace.rank]

    basis = (lambda _: None, lambda old, _: old, counted)
    tx = om.project_low_rank(
        optax.identity(), rank=2, basis=basis, update_interval=9, renew_below=0.1
    )
    update, state = jax.jit(tx.update), tx.init({"w": STREAM[0]})
    for size in (1, 0, 0, 1):  # Of the second gradient.
        grads = {"w": STREAM[0] * np.float32([[[1]], [[size]]])}
        _, state = update(grads, state)
    jax.effects_barrier()
    assert len(searches) == 1


@pytest.mark.daily("inf")
@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.broad)])
@pytest.mark.broad
def test_one_gradient_that_is_not_finite_does_not_stay(bad):
    """It counts as zero: not in an update, and not in a state."""
    grads = STREAM[:, 0].copy()
    zero = grads.copy()
    grads[3, 1, 1], zero[3] = bad, 0
    galore = functools.partial(om.project_low_rank, rank=2, basis=svd_basis("exact"))
    for tx in (
        galore(optax.trace(0.9), combine=om.compensate()),
        om.transforms.scale_by_tracked_adam(rank=2),
    ):
        paths = [run(tx, jnp.asarray(stream)) for stream in (grads, zero)]
        for (got, _), (want, _) in zip(*paths, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-6)


def test_all_stacks_are_renewed_under_one_condition():
    stacks = {name: np.zeros(SHAPE, np.float32) for name in "abc"}
    for stagger in (False, True):
        tx = om.project_low_rank(optax.trace(0.9), rank=2, stagger=stagger)
        jaxpr = jax.make_jaxpr(tx.update)(stacks, tx.init(stacks))
        conditions = [e for e in jaxpr.eqns if e.primitive.name == "cond"]
        # Others only say what a platform runs.
        of_values = [e for e in conditions if not e.params.get("branches_platforms")]
        assert len(of_values) == 1
