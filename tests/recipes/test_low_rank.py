"""GaLore, Alice and Alice-0: their papers' trajectories and the identities."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, zeros
from _reference import low_rank as ref

import optax_matrix as om
from optax_matrix.linalg import eigenbasis, qr_householder
from optax_matrix.linalg.random import normal
from optax_matrix.matrices.rules import by_path
from optax_matrix.recipes._low_rank import coordinate_adam
from optax_matrix.stacks.layout import make_layout
from optax_matrix.transforms import Basis
from optax_matrix.transforms.low_rank import _renewal
from optax_matrix.transforms.low_rank._basis import nothing_tracked, tracked_as_it_was

M, N, RANK, LEADING, INTERVAL = 6, 9, 3, 1, 3
EXACT = {"start": "exact", "max_shrink": None, "update_interval": INTERVAL}


def grads(steps=8, shape=(M, N)):
    return gaussian(*shape, seed=61) + gaussian(steps, *shape, seed=62) / 2


def run(tx, stream):
    """Updates of one Flax kernel, each as (out, in)."""
    kernels = jnp.asarray(np.swapaxes(stream, -1, -2))

    def body(state, g):
        updates, state = tx.update({"kernel": g}, state)
        return state, updates["kernel"]

    _, updates = jax.jit(lambda s, g: jax.lax.scan(body, s, g))(
        tx.init({"kernel": kernels[0]}), kernels
    )
    return np.swapaxes(updates, -1, -2)


def key_of(epoch):
    """The key that the library has for this kernel between two renewals."""
    layout = make_layout({"kernel": zeros(N, M)})
    key = jax.random.fold_in(jax.random.key(0), epoch)
    for number in next(iter(layout.groups.values())).ids[0]:
        key = jax.random.fold_in(key, number)
    return key


def normals(epoch, m, count):
    return np.asarray(normal(key_of(epoch), (), m, count, jnp.float64))


def permutation(epoch, size):
    return np.asarray(jax.random.permutation(key_of(epoch), size))


COLUMNS = ref.complement_columns(permutation)
SUBSPACE = ref.random_subspace(normals)
CASES = {
    "alice": (om.scale_by_alice, {"b3": 0.9}, COLUMNS),
    "subspace": (om.scale_by_alice, {"b3": 0.9, "sampling": "subspace"}, SUBSPACE),
    "carried": (om.scale_by_alice, {"b3": 0.9, "transport": "carry"}, COLUMNS),
    "alice_0": (om.scale_by_alice_0, {}, COLUMNS),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    ["alice", *(pytest.param(n, marks=pytest.mark.slow) for n in list(CASES)[1:])],
)
@pytest.mark.broad
def test_alice_is_algorithm_4(name):
    recipe, options, draw = CASES[name]
    got = run(recipe(rank=RANK, leading=LEADING, **EXACT, **options), grads())
    step = functools.partial(
        ref.alice,
        rank=RANK,
        leading=LEADING,
        draw=draw,
        b3=options.get("b3", 0.0),
        carry="transport" in options,
    )
    state = {}
    want = [step(g, state) for g in grads()]
    # Two float64 renewals from gaps of the eigenvalues of 10% and more.
    np.testing.assert_allclose(got, want, atol=1e-9)


@pytest.mark.slow
def test_fira_in_alice_has_no_further_factor():
    """Structured Fisher, F.7: only Fira+ has alpha_c."""
    updates = {}
    for kind, scale in (("fira", None), ("fira", 1.0), ("fira_plus", None)):
        tx = om.scale_by_alice(rank=2, compensation=kind, residual_scale=scale)
        updates[kind, scale] = run(tx, np.float32(grads(1)))
    np.testing.assert_array_equal(updates["fira", None], updates["fira", 1.0])
    tx = om.scale_by_alice(rank=2, compensation="fira_plus", residual_scale=0.4)
    np.testing.assert_array_equal(
        run(tx, np.float32(grads(1))), updates["fira_plus", None]
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.broad
def test_galore_is_algorithm_2():
    tx = om.scale_by_galore(rank=RANK, basis="svd", update_interval=INTERVAL)
    state = {}
    want = [ref.galore(g, state, rank=RANK) for g in grads()]
    np.testing.assert_allclose(run(tx, grads()), want, atol=1e-11)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_galore_with_its_programs_epsilon():
    """At gradients of 1e-4 the program's 1e-6 makes the first update 26% smaller."""
    tiny = 1e-4 * grads()
    options = {"rank": RANK, "basis": "svd", "update_interval": INTERVAL}
    got = run(om.scale_by_galore(eps=1e-6, **options), tiny)
    state = {}
    want = np.array([ref.galore(g, state, rank=RANK, eps=1e-6) for g in tiny])
    np.testing.assert_allclose(got, want, atol=1e-10)
    without = run(om.scale_by_galore(**options), tiny)
    assert np.linalg.norm(got[0]) < 0.75 * np.linalg.norm(without[0])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_alice_without_its_parts_is_galore_on_a_subspace_iteration():
    """No tracking, switching and compensation: one power step, Ritz, Adam."""

    def power_step(s):
        g = s.gradient
        v = qr_householder(g @ (g.mT @ s.vectors))
        return v @ eigenbasis(v.mT @ g @ g.mT @ v)[1]

    basis = Basis(
        init=nothing_tracked,
        track=tracked_as_it_was,
        refresh=power_step,
        start=lambda s: jnp.linalg.svd(s.gradient)[0][..., : s.rank],
    )
    inner = coordinate_adam(0.9, 0.9, bias_correction=False, mu_dtype=None)
    iteration = om.project_low_rank(
        inner, rank=RANK, basis=basis, update_interval=INTERVAL
    )
    want = run(om.on_matrices(optax.chain(iteration, optax.scale(0.3))), grads())
    tx = om.scale_by_alice(rank=RANK, b3=0.0, switch="none", compensation=None, **EXACT)
    np.testing.assert_allclose(run(tx, grads()), want, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_alice_at_full_rank_is_eigen_adam():
    """Its moments carried (not v), no switching, the same renewals: 1, K, 2K, ..."""
    rates = {"b1": 0.9, "b2": 0.8, "b3": 0.7}
    tx = om.scale_by_alice(
        rank=1.0, switch="none", transport="carry", scale=1.0, **EXACT, **rates
    )
    want = om.scale_by_eigen_adam(
        policy="eigen_exact", update_interval=INTERVAL, **rates
    )
    got, want = run(tx, grads()), run(want, grads())
    np.testing.assert_allclose(got, want, atol=1e-9)
    kept = om.scale_by_alice(rank=1.0, switch="none", scale=1.0, **EXACT, **rates)
    assert np.abs(run(kept, grads()) - want).max() > 0.01


@pytest.mark.slow
def test_parts_of_alice_are_parts():
    """Table 5: each changes the update, from the step on where it takes part."""
    parts = {
        "none": {"b3": 0.0, "switch": "none", "compensation": None},
        "tracking": {"switch": "none", "compensation": None},
        "switching": {"compensation": None},
        "compensation": {},
    }
    tx = {
        name: om.scale_by_alice(
            rank=RANK, leading=LEADING, **EXACT, **{"b3": 0.9, **options}
        )
        for name, options in parts.items()
    }
    got = {name: run(t, np.float32(grads(3))) for name, t in tx.items()}
    apart = lambda a, b, t: np.abs(got[a][t] - got[b][t]).max() > 0.01
    assert not apart("none", "tracking", 0)
    assert apart("none", "tracking", 2)
    assert apart("tracking", "switching", 0)
    assert apart("switching", "compensation", 0)
    # The compensation is what the basis leaves out: beside it, at its size.
    extra = got["compensation"][0] - got["switching"][0]
    overlap = np.abs(got["switching"][0].T @ extra).max()
    assert overlap < 1e-5 * np.linalg.norm(extra) ** 2
    size = 0.3 * 0.4 * (N * (M - RANK) / 0.1) ** 0.5
    np.testing.assert_allclose(np.linalg.norm(extra), size, rtol=1e-4)


def test_last_layer():
    """By Adam unless asked for; a rule by path goes on under it."""
    params = {
        "up": {"kernel": zeros(4, 8)},
        "lm_head": {"kernel": zeros(4, 16), "bias": zeros(16)},
    }
    held = {}
    rule = by_path(exclude="up")
    for key, options in {
        "other": {},
        "method": {"last_layer": "method"},
        "rule": {"last_layer": "method", "dimension_numbers": rule},
    }.items():
        tx = om.alice(0.02, rank=2, **options)
        state = jax.eval_shape(tx.init, params)
        manifest = state.manifest
        held[key] = sorted(name.split("@")[0] for name in manifest)
    head, up = "16x4", "8x4"
    assert held == {"other": [up], "method": [head, up], "rule": [head]}
    with pytest.raises(ValueError, match="`last_layer` must be one of"):
        om.galore(0.02, last_layer="adam")
    with pytest.raises(ValueError, match="`last_layer` must be 'other' beside"):
        om.galore(0.02, last_layer="method", dimension_numbers={"up": None})


def test_errors():
    for recipe, options in (
        (om.galore, {"rank": 0}),
        (om.galore, {"scale": 0.0}),
        (om.galore, {"basis": "gaussian"}),
        (om.galore, {"side": "both"}),
        (om.alice, {"leading": 0}),
        (om.alice, {"b3": 1.0}),
        (om.alice, {"switch": "swap"}),
        (om.alice, {"compensation": "best"}),
        (om.alice, {"residual_scale": -1.0}),
        (om.alice_0, {"transport": "move"}),
    ):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
            recipe(0.02, **options)


def compiled(recipe, shape, **options):
    params = {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32)}
    tx = recipe(**options)
    state = jax.eval_shape(tx.init, params)
    return jax.jit(tx.update).lower(params, state).compile()


@pytest.mark.parametrize(
    ("recipe", "side", "factorizations"),
    # For Ritz r, and one QR for that; for the range r + 8, one QR in a loop.
    [
        (functools.partial(om.scale_by_alice, leading=4), 10, 1),
        (om.scale_by_galore, 18, 1),
    ],
    ids=["alice", "galore"],
)
@pytest.mark.broad
def test_no_decomposition_of_a_full_side_in_the_default_step(
    recipe, side, factorizations
):
    text = compiled(recipe, (48, 40), rank=10).as_text()
    found = re.findall(r"= \(?(\S+\[[\d,]*\]).*custom_call_target=\"(\w+)\"", text)
    sides = collections.defaultdict(list)
    for shape, target in found:
        name = re.sub("^lapack_.|_ffi$", "", target)
        last = re.findall(r"\d+", shape.split("[")[1])[-1]
        sides[name].append(int(last))
    assert sides["syevd"] == [side]
    assert not {"gesdd", "gesvd", "geqrf"} & set(sides)
    assert len(sides["potrf"]) == factorizations
    assert max(sides["potrf"]) <= side


@pytest.mark.broad
def test_work_of_a_step_is_the_formula(monkeypatch):
    """At r = m/4: projection, residual and back-projection 2mnr each, tracking 2nr^2.

    What a renewal costs is apart: the branch without one is all there is here.
    """
    m, n, r = 512, 640, 128
    formula = 6 * m * n * r + 2 * n * r**2
    monkeypatch.setattr(_renewal.jax.lax, "switch", lambda _, branches: branches[0]())
    step = compiled(om.scale_by_alice, (n, m), rank=0.25)
    # Entrywise work (norms, scales, moments) is about 50 mn beside these 832 mn.
    assert formula < step.cost_analysis()["flops"] < 1.1 * formula
