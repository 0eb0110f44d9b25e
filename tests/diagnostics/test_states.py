"""Bases and rotations that states hold, by what the methods do with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian
from _notebooks import definitions

import optax_matrix as om
from optax_matrix import diagnostics as d
from optax_matrix.linalg.skew import free_entries
from optax_matrix.transforms.low_rank._project_both_sides import project_both_sides

PROBES = definitions(
    "papers/06_orthogonal_training", "probe", "mean_probe", "updates_per_entry"
)

# Kernels (in, out); one stack, because nearly all of the time is compilation.
PARAMS = {
    "up": {"kernel": jnp.float32(gaussian(10, 6, seed=1)), "bias": jnp.ones(6)},
    "w_stacked": jnp.float32(gaussian(2, 10, 6, seed=2)),
}
PATHS = {"up/kernel", "w_stacked"}


def gradients(seed, params=PARAMS):
    rng = np.random.default_rng(seed)
    draw = lambda x: np.asarray(rng.standard_normal(x.shape), np.float32)
    return jax.tree.map(draw, params)


def after(tx, steps, params=PARAMS):
    state = tx.init(params)
    update = jax.jit(tx.update)
    for seed in range(steps):
        updates, state = update(gradients(seed), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params, state


def left_vectors(kernel, rank):
    """Of a kernel ``(in, out)`` with fewer outputs, seen ``out x in``."""
    x = np.asarray(kernel, np.float64).swapaxes(-1, -2)
    return jnp.float32(np.linalg.svd(x)[0][..., :rank])


@pytest.mark.slow
def test_bases_are_those_of_galore():
    _, state = after(om.galore(1e-3, rank=2, basis="svd"), 1)
    got, g = d.bases(state, PARAMS), gradients(0)
    assert set(got) == PATHS
    for path, x in (("up/kernel", g["up"]["kernel"]), ("w_stacked", g["w_stacked"])):
        cosines = d.eigenvector_cosines(
            got[path], left_vectors(x.reshape(-1, 10, 6), 2)
        )
        np.testing.assert_allclose(cosines, 1, rtol=1e-4)


@pytest.mark.slow
def test_stability_over_renewals_from_states():
    """Alice, Figure 6: every update renews, and two gradients are the same."""
    tx = om.galore(1e-3, rank=2, update_interval=1, basis="svd")
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    held = []
    for seed in (0, 0, 1):
        _, state = update(gradients(seed), state, PARAMS)
        held.append(d.bases(state, PARAMS))
    measures = definitions("papers/05_subspaces", "basis_stability")
    cosines = measures.basis_stability(held)
    assert cosines["w_stacked"].shape == (2, 2, 2)
    for path, values in cosines.items():
        np.testing.assert_allclose(values[0], 1, rtol=1e-4, err_msg=path)
        assert (values[1] < 0.999).any()


@pytest.mark.slow
def test_rotations_of_frames_that_rotate_on_both_sides():
    _, state = after(om.soap(1e-3), 2)
    got = d.bases(state, PARAMS)["w_stacked"]
    assert got.rows.shape == (2, 6, 6)  # Outputs: kernels are (in, out).
    assert got.cols.shape == (2, 10, 10)
    for side in got:
        assert (d.orthogonality_error(side) < 1e-5).all()
        assert (np.abs(side - np.eye(side.shape[-1])) > 0.1).any()


@pytest.mark.slow
def test_bases_of_both_sides():
    project = project_both_sides(optax.identity(), rank=2, basis="svd")
    got = d.bases(after(om.on_matrices(project), 1)[1], PARAMS)["w_stacked"]
    assert got.rows.shape == (2, 6, 2)
    assert got.cols.shape == (2, 10, 2)
    x = gradients(0)["w_stacked"].swapaxes(-1, -2)
    inside = np.linalg.norm(got.rows.mT @ x @ got.cols, axis=(-2, -1)) ** 2
    # Singular vectors on both sides hold the energy of the two leading values.
    s = d.singular_values(x)[:, :2]
    np.testing.assert_allclose(inside, (s**2).sum(-1), rtol=1e-3)


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


def equals_r_w_p(held, before, new):
    """POET's equation, for kernels (in, out)."""
    w0 = np.asarray(before, np.float64).reshape(-1, 10, 6)
    r = np.eye(10) if held.r is None else np.asarray(held.r, np.float64)
    p = np.eye(6) if held.p is None else np.asarray(held.p, np.float64)
    want = (r @ w0 @ p).reshape(new.shape)
    assert np.abs(want - np.asarray(before)).max() > 0.05, "It did not move."
    np.testing.assert_allclose(new, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", POET.values(), ids=POET)
def test_rotations_of_poet_are_its_factors(options):
    new, state = after(om.poet(0.05, merge_interval=None, **options), 3)
    kernel = om.linalg.cayley
    if "terms" in options:
        kernel = functools.partial(om.linalg.cayley_neumann, terms=4)
    held = d.rotations(state, PARAMS, orthogonal=kernel)
    assert set(held) == PATHS
    equals_r_w_p(held["w_stacked"], PARAMS["w_stacked"], new["w_stacked"])
    kernels = PARAMS["up"]["kernel"], new["up"]["kernel"]
    equals_r_w_p(held["up/kernel"], *kernels)
    sides = options.get("sides", "both")
    for x, side in ((held["w_stacked"].r, "in"), (held["w_stacked"].p, "out")):
        assert (x is None) == (sides not in ("both", side))
        if x is not None:
            assert (d.orthogonality_error(x) < 1e-4).all()
            assert (PROBES.probe(x) < 1).all()


@pytest.mark.broad
@pytest.mark.parametrize("variant", ["block", "full"])
def test_rotations_of_the_reparameterized_form(variant):
    poet = om.reparameterize(variant=variant, block=4)
    frozen, trainable = poet.split({"w": PARAMS["w_stacked"]})
    trainable = moved(trainable, 0.3)
    held = d.rotations(trainable, frozen)["w"]
    new = jax.jit(poet.materialize)(frozen, trainable)["w"]
    equals_r_w_p(held, PARAMS["w_stacked"], new)
    # Norms of Q: those of the blocks, made from the triangles by hand.
    triangles = np.asarray(trainable.rotations["w"][0]["in"])
    k, b = triangles.shape[1], 4
    inside = free_entries(10, k, b)
    q = np.zeros((2, k, b, b))
    q[(..., *np.triu_indices(b, 1))] = np.where(inside, triangles, 0)
    q -= q.swapaxes(-1, -2)
    fourth = np.linalg.matrix_power(q, 4)
    want = (np.sum(fourth**2, axis=(-2, -1)) / 2) ** (1 / 8)
    np.testing.assert_allclose(held.r_norms, want, rtol=1e-4)


def moved(trainable, size, step=0):
    """The trainable part with Q's that are neither zero nor alike."""
    draw = lambda x: np.float32(size * np.cos(step + np.arange(x.size))).reshape(
        x.shape
    )
    return trainable._replace(rotations=jax.tree.map(draw, trainable.rotations))


@pytest.mark.slow
def test_rotations_after_a_merge_are_the_identity():
    _, state = after(om.poet(0.05, block=4, merge_interval=2), 2)
    held = d.rotations(state, PARAMS)["up/kernel"]
    np.testing.assert_array_equal(held.r[0], np.eye(10))
    np.testing.assert_array_equal(held.p_norms, 0)
    assert PROBES.mean_probe(held.r) == 1


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
        merge = jax.jit(poet.merge)
        total = 0
        for step in range(5):
            trainable = moved(trainable, 1.0, step)
            held = d.rotations(trainable, frozen)["w"]
            total = total + PROBES.updates_per_entry(held.r, held.p)[0]
            frozen, trainable, _ = merge(frozen, trainable)
        counts[variant, block] = np.asarray(total)
    assert (counts["block", 4] == 10).all()
    assert (counts["block", 8] == 10).all()
    full = counts["full", 0.25]
    assert full.mean() == 10 * 0.25  # A quarter of the rows and of the columns.
    assert full.max() > full.min()


@pytest.mark.slow
def test_mixed_parts_are_refused():
    frozen, trainable = om.reparameterize(block=4).split({"w": PARAMS["w_stacked"]})
    with pytest.raises(ValueError, match=r"must both be parts of `reparameterize`"):
        d.rotations(trainable, PARAMS)
    with pytest.raises(ValueError, match=r"must both be parts of `reparameterize`"):
        d.rotations(om.poet(1e-3).init(PARAMS), frozen)
