"""Bases and rotations that states hold, by what the methods do with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix import diagnostics as d

PARAMS = {
    "tall": jnp.float32(gaussian(10, 6, seed=1)),
    "wide": {"kernel": jnp.float32(gaussian(5, 9, seed=2)), "bias": jnp.ones(9)},
    "stacked": jnp.float32(gaussian(2, 6, 6, seed=3)),
}


def gradients(seed):
    rng = np.random.default_rng(seed)
    draw = lambda x: jnp.asarray(rng.standard_normal(x.shape), x.dtype)
    return jax.tree.map(draw, PARAMS)


def after(tx, steps, params=PARAMS):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for seed in range(steps):
        updates, state = update(gradients(seed), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params, state


def left_vectors(kernel, rank):
    """Of the kernel ``(in, out)`` seen ``out x in``, on its short side."""
    x = np.asarray(kernel, np.float64).swapaxes(-1, -2)
    x = x if x.shape[-2] <= x.shape[-1] else x.swapaxes(-1, -2)
    return np.linalg.svd(x.reshape(-1, *x.shape[-2:]))[0][..., :rank]


def test_bases_are_those_of_galore():
    _, state = after(om.galore(1e-3, rank=2, basis="svd"), 1)
    got, g = d.bases(state, PARAMS), gradients(0)
    assert set(got) == {"tall", "wide/kernel", "stacked"}
    flat = {
        "tall": g["tall"],
        "wide/kernel": g["wide"]["kernel"],
        "stacked": g["stacked"],
    }
    for path, kernel in flat.items():
        cosines = d.eigenvector_cosines(got[path], jnp.float32(left_vectors(kernel, 2)))
        np.testing.assert_allclose(cosines, 1, rtol=1e-4)


@pytest.mark.broad
def test_stability_over_renewals_from_states():
    """Alice, Figure 6: every update renews, and gradients stay the same."""
    tx = om.galore(1e-3, rank=2, update_interval=1, basis="svd")
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    held = []
    for seed in (0, 0, 1):
        _, state = update(gradients(seed), state, PARAMS)
        held.append(d.bases(state, PARAMS))
    cosines = d.basis_stability(held)
    assert cosines["stacked"].shape == (2, 2, 2)
    for path, values in cosines.items():
        np.testing.assert_allclose(values[0], 1, rtol=1e-4, err_msg=path)
        assert (values[1] < 0.999).any()


@pytest.mark.broad
def test_rotations_of_rotated_frames_and_bases_of_both_sides():
    _, state = after(om.soap(1e-3), 2)
    got = d.bases(state, PARAMS)
    assert got["tall"].rows.shape == (1, 6, 6)  # Outputs: kernels are (in, out).
    assert got["tall"].cols.shape == (1, 10, 10)
    for side in (got["tall"].rows, got["stacked"].cols):
        assert (d.orthogonality_error(side) < 1e-5).all()
    two = om.on_matrices(om.project_low_rank(om.momentum(0.9), rank=2, side="both"))
    got = d.bases(after(two, 1)[1], PARAMS)
    assert got["tall"].rows.shape == (1, 6, 2)
    assert got["tall"].cols.shape == (1, 10, 2)
    x = gradients(0)["tall"].T[None]
    both = got["tall"].rows.mT @ x @ got["tall"].cols
    s = d.singular_values(x)[0]
    # The exact vectors would hold the energy of the two leading values.
    assert jnp.sum(both**2) == pytest.approx(float(s[0] ** 2 + s[1] ** 2), rel=1e-2)


def test_states_without_bases_are_refused():
    with pytest.raises(ValueError, match=r"`opt_state` must hold bases"):
        d.bases(om.muon(1e-3).init(PARAMS), PARAMS)
    with pytest.raises(ValueError, match=r"`state` must hold rotations"):
        d.rotations(om.muon(1e-3).init(PARAMS), PARAMS)


POET = {
    "block": {"variant": "block", "block": 4},
    "full": {"variant": "full", "block": 0.5},
    "in": {"variant": "block", "block": 3, "sides": "in"},
    "out": {"variant": "full", "block": 3, "sides": "out"},
    "series": {"variant": "block", "block": 4, "terms": 4},
}


def equals_r_w_p(held, before, new, path):
    """POET's equation, for kernels (in, out)."""
    w0 = np.asarray(before, np.float64).reshape(-1, *before.shape[-2:])
    r = np.eye(w0.shape[-2]) if held.r is None else np.asarray(held.r, np.float64)
    p = np.eye(w0.shape[-1]) if held.p is None else np.asarray(held.p, np.float64)
    want = (r @ w0 @ p).reshape(new.shape)
    assert np.abs(want - np.asarray(before)).max() > 0.05, f"{path} did not move"
    np.testing.assert_allclose(new, want, atol=1e-5, err_msg=path)


@pytest.mark.broad
@pytest.mark.parametrize("options", POET.values(), ids=POET)
def test_rotations_of_poet_are_its_factors(options):
    new, state = after(om.poet(0.05, **options), 3)
    kernel = om.linalg.cayley
    if "terms" in options:
        kernel = functools.partial(om.linalg.cayley_neumann, terms=4)
    held = d.rotations(state, PARAMS, orthogonal=kernel)
    assert set(held) == {"tall", "wide/kernel", "stacked"}
    equals_r_w_p(held["tall"], PARAMS["tall"], new["tall"], "tall")
    equals_r_w_p(held["stacked"], PARAMS["stacked"], new["stacked"], "stacked")
    wide = PARAMS["wide"]["kernel"], new["wide"]["kernel"]
    equals_r_w_p(held["wide/kernel"], *wide, "wide")
    sides = options.get("sides", "both")
    for x, side in ((held["tall"].r, "in"), (held["tall"].p, "out")):
        assert (x is None) == (sides not in ("both", side))
        if x is not None:
            assert (d.orthogonality_error(x) < 1e-4).all()
            assert (d.probe(x) < 1).all()


@pytest.mark.broad
@pytest.mark.parametrize("variant", ["block", "full"])
def test_rotations_of_the_reparameterized_form(variant):
    poet = om.reparameterize(variant=variant, block=4)
    frozen, trainable = poet.split(PARAMS)
    moved = lambda q: 0.3 * jnp.cos(jnp.arange(q.size, dtype=q.dtype)).reshape(q.shape)
    rotations = jax.tree.map(moved, trainable.rotations)
    trainable = trainable._replace(rotations=rotations)
    held = d.rotations(trainable, frozen)
    new = poet.materialize(frozen, trainable)
    equals_r_w_p(held["tall"], PARAMS["tall"], new["tall"], "tall")
    equals_r_w_p(held["stacked"], PARAMS["stacked"], new["stacked"], "stacked")
    # Norms of Q: those of the blocks, made from the triangles by hand.
    triangles = np.asarray(rotations["stacked"][0]["in"])
    k, b = triangles.shape[1], 4
    inside = om.linalg.free_entries(6, k, b)
    q = np.zeros((2, k, b, b))
    q[(..., *np.triu_indices(b, 1))] = np.where(inside, triangles, 0)
    q -= q.swapaxes(-1, -2)
    fourth = np.linalg.matrix_power(q, 4)
    want = (np.sum(fourth**2, axis=(-2, -1)) / 2) ** (1 / 8)
    np.testing.assert_allclose(held["stacked"].r_norms, want, rtol=1e-4)


def test_rotations_after_a_merge_are_the_identity():
    _, state = after(om.poet(0.05, block=4, merge_interval=2), 2)
    held = d.rotations(state, PARAMS)["tall"]
    np.testing.assert_array_equal(held.r[0], np.eye(10))
    np.testing.assert_array_equal(held.p_norms, 0)
    assert d.mean_probe(held.r) == 1


@pytest.mark.slow
def test_block_primitives_update_every_entry_and_full_ones_some():
    """POET, Appendix H: 200 updates of each entry in 100 steps, or b of them evenly.

    Five steps of a 16 x 16 matrix, with a merge after each.
    """
    params = {"w": jnp.float32(gaussian(16, 16))}
    counts = {}
    for variant, block in (("block", 4), ("block", 8), ("full", 0.25)):
        poet = om.reparameterize(variant=variant, block=block)
        frozen, trainable = poet.split(params)
        total = 0
        for step in range(5):
            q = jax.tree.map(
                lambda x, s=step: jnp.cos(
                    s + jnp.arange(x.size, dtype=x.dtype)
                ).reshape(x.shape),
                trainable.rotations,
            )
            trainable = trainable._replace(rotations=q)
            held = d.rotations(trainable, frozen)["w"]
            total = total + d.updates_per_entry(held.r, held.p)[0]
            frozen, trainable, _ = poet.merge(frozen, trainable)
        counts[variant, block] = np.asarray(total)
    assert (counts["block", 4] == 10).all()
    assert (counts["block", 8] == 10).all()
    full = counts["full", 0.25]
    assert full.mean() == 10 * 0.25  # A quarter of the rows and of the columns.
    assert full.max() > full.min()


def test_mixed_parts_are_refused():
    frozen, trainable = om.reparameterize(block=4).split({"w": PARAMS["tall"]})
    with pytest.raises(ValueError, match=r"must both be parts of `reparameterize`"):
        d.rotations(trainable, PARAMS)
    with pytest.raises(ValueError, match=r"must both be parts of `reparameterize`"):
        d.rotations(om.poet(1e-3).init(PARAMS), frozen)
