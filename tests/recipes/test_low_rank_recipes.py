"""SUMO, Fira, APOLLO, LDAdam: their trajectories, identities, sizes of state."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, rank_one, zeros
from _reference import low_rank, low_rank_recipes as ref
from _registry import LOW_RANK

import optax_matrix as om
from optax_matrix.linalg import CUBIC, newton_schulz, polar_qr
from optax_matrix.linalg.random import normal
from optax_matrix.stacks.layout import make_layout

M, N, RANK, INTERVAL = 6, 9, 3, 3
SVD = {"basis": "svd", "update_interval": INTERVAL}
LITERAL = {"max_shrink": None, "update_interval": INTERVAL}


def grads(steps=8, shape=(M, N)):
    return gaussian(*shape, seed=71) + gaussian(steps, *shape, seed=72) / 2


def run(tx, stream):
    """Updates of one Flax kernel, each as (out, in), and the states after each."""
    kernels = jnp.asarray(np.swapaxes(stream, -1, -2))

    def body(state, g):
        updates, state = tx.update({"kernel": g}, state)
        return state, (updates["kernel"], state)

    _, (updates, states) = jax.jit(lambda s, g: jax.lax.scan(body, s, g))(
        tx.init({"kernel": kernels[0]}), kernels
    )
    return np.swapaxes(updates, -1, -2), states.inner_state


def normals(epoch, m, count):
    """The numbers that the library draws for this kernel."""
    layout = make_layout({"kernel": zeros(N, M)})
    key = jax.random.fold_in(jax.random.key(0), epoch)
    for number in next(iter(layout.groups.values())).ids[0]:
        key = jax.random.fold_in(key, number)
    return np.asarray(normal(key, (), m, count, jnp.float64))


GIVEN = np.linalg.qr(gaussian(M, RANK, seed=73))[0]


def given(*_):
    return GIVEN


CASES = {
    "sumo": (om.scale_by_sumo(rank=RANK, side="short", **SVD), ref.sumo),
    "sumo-both": (
        om.scale_by_sumo(rank=RANK, side="both", scaling="sqrt_max", **SVD),
        functools.partial(ref.sumo, both=True, factor=1.0),
    ),
    "fira": (om.scale_by_fira(rank=RANK, basis="svd", **LITERAL), ref.fira),
    "fira-scaled": (
        om.scale_by_fira(
            rank=RANK, basis="svd", scale=0.5, residual_scale=0.3, **LITERAL
        ),
        functools.partial(ref.fira, scale=0.5, residual_scale=0.3),
    ),
    "fira-epsilon": (
        om.scale_by_fira(rank=RANK, basis="svd", eps=0.3, **LITERAL),
        functools.partial(ref.fira, eps=0.3),
    ),
    "fira-given": (
        om.scale_by_fira(rank=RANK, basis=given, **LITERAL),
        functools.partial(ref.fira, basis=given),
    ),
    "fira_plus": (om.scale_by_fira_plus(rank=RANK, **SVD), ref.fira_plus),
    "apollo": (
        om.scale_by_apollo(rank=RANK, scale=2.0, **LITERAL),
        functools.partial(ref.apollo, scale=2.0, draw=normals),
    ),
    "apollo-epsilon": (
        om.scale_by_apollo(rank=RANK, eps=0.3, **LITERAL),
        functools.partial(ref.apollo, draw=normals, eps=0.3),
    ),
    "apollo-given": (
        om.scale_by_apollo(rank=RANK, basis=given, **LITERAL),
        functools.partial(ref.apollo, draw=lambda *_: RANK**0.5 * GIVEN),
    ),
    "apollo_mini": (
        om.scale_by_apollo_mini(**LITERAL),
        functools.partial(ref.apollo, scale=128.0, rank=1, draw=normals),
    ),
    "apollo_svd": (
        om.scale_by_apollo_svd(rank=RANK, basis="svd", **LITERAL),
        ref.apollo,
    ),
    "ldadam": (om.scale_by_ldadam(rank=RANK, start="exact"), ref.ldadam),
    "ldadam-projected": (
        om.scale_by_ldadam(rank=RANK, start="exact", error_feedback=False, b1=0.7),
        functools.partial(ref.ldadam, feedback=False, b1=0.7),
    ),
}
DAILY = ("sumo", "fira", "apollo", "ldadam")


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.broad][n in DAILY :]) for n in CASES],
)
def test_recipes_are_their_papers_algorithms(name):
    tx, step = CASES[name]
    if "rank" not in getattr(step, "keywords", {}):
        step = functools.partial(step, rank=RANK)
    state = {}
    want = [step(g, state) for g in grads()]
    # A few float64 decompositions with gaps of 10% and more.
    np.testing.assert_allclose(run(tx, grads())[0], want, atol=1e-10)


def test_a_given_basis_of_another_shape_is_refused():
    tx = om.scale_by_fira(rank=RANK, basis=lambda _: GIVEN.T)
    params = {"kernel": zeros(N, M)}
    with pytest.raises(ValueError, match=r"must return columns of shape \(6, 3\)"):
        jax.eval_shape(lambda: tx.update(params, tx.init(params)))


def test_every_low_rank_recipe_has_a_case():
    here = {name.split("-")[0] for name in CASES}
    assert here | {"galore", "alice", "alice_0"} == LOW_RANK


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_sumo_projects_the_long_side_unless_asked_otherwise():
    """Algorithm 1 with its m >= n: the columns of a wide matrix, the rows of a tall."""
    state = {}
    want = [ref.sumo(g.T, state, rank=RANK).T for g in grads()]
    wide, states = run(om.scale_by_sumo(rank=RANK, **SVD), grads())
    np.testing.assert_allclose(wide, want, atol=1e-10)
    (basis,) = states[0].basis.values()
    assert basis.vectors.shape[-2:] == (N, RANK)
    tall, _ = run(om.scale_by_sumo(rank=RANK, **SVD), np.swapaxes(grads(), 1, 2))
    np.testing.assert_allclose(np.swapaxes(tall, 1, 2), wide, atol=1e-12)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_sumo_carries_its_moment():
    """M is Q_new' Q_old M at a renewal, and b1 M + (1 - b1) Q'G throughout."""
    stream = grads()
    _, states = run(om.scale_by_sumo(rank=RANK, side="short", **SVD), stream)
    (basis,) = states[0].basis.values()
    (mu,) = states[0].inner_state[0].mu.values()
    q, moment = np.asarray(basis.vectors[:, 0]), np.asarray(mu[:, 0])
    renewals = 0
    for t in range(1, len(stream)):
        change = q[t].T @ q[t - 1]
        renewals += np.abs(change - np.eye(RANK)).max() > 0.01
        want = 0.95 * change @ moment[t - 1] + 0.05 * q[t].T @ stream[t]
        np.testing.assert_allclose(moment[t], want, atol=1e-12)
    assert renewals == 2


@pytest.mark.usefixtures("x64")
@pytest.mark.broad
def test_sumo_at_full_rank_is_muon_with_the_exact_polar_factor():
    """No Nesterov; whatever the basis, which spans everything, and its renewals."""
    tx = om.scale_by_sumo(rank=1.0, side="short", update_interval=INTERVAL)
    want = om.scale_by_muon(nesterov=False, polar=polar_qr, scaling="max")
    got, want = run(tx, grads())[0], run(want, grads())[0]
    np.testing.assert_allclose(got, want, atol=1e-11)


@pytest.mark.broad
def test_the_polar_factor_of_a_moment_without_full_rank_is_finite_and_compact():
    """And that is where the limiter of SUMO acts: from 1, by 1.1, to sqrt(r)."""
    stream = np.float32(np.stack([rank_one(M, N), *grads(6)]))
    options = {"rank": 1.0, "side": "short", "scaling": "none"}
    free, _ = run(om.scale_by_sumo(limiter=None, **options), stream)
    norms = np.linalg.norm(free, axis=(1, 2))
    np.testing.assert_allclose(norms, [1.0, *[M**0.5] * 6], rtol=1e-4)
    limited, _ = run(om.scale_by_sumo(**options), stream)
    norms = np.linalg.norm(limited, axis=(1, 2))
    np.testing.assert_allclose(norms, 1.1 ** np.arange(7.0), rtol=1e-4)
    np.testing.assert_allclose(limited[-1], free[-1] * 1.1**6 / M**0.5, atol=1e-4)


@pytest.mark.broad
def test_sumos_limiter_allows_the_growth_of_block_3_after_any_shrinking():
    """From a momentum of full rank to one of rank one and back."""
    stream = np.float32(np.stack([*grads(2), rank_one(M, N), *grads(3)]))
    options = {"rank": 1.0, "side": "short", "scaling": "none", "b1": 0.0}
    norms = lambda **more: np.linalg.norm(
        run(om.scale_by_sumo(**options, **more), stream)[0], axis=(1, 2)
    )
    want = [M**0.5, M**0.5, *1.1 ** np.arange(4.0)]
    np.testing.assert_allclose(norms(), want, rtol=1e-4)
    assert norms(max_shrink=2.0)[3] > 1.3  # What it remembers fell by two only.


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["sumo", "galore"])
def test_a_matrix_whose_coordinates_are_small_is_renewed(name):
    """The alternative criterion of SUMO's Algorithm 1, for each matrix by itself."""
    recipe, reference = {
        "sumo": (om.scale_by_sumo, ref.sumo),
        "galore": (om.scale_by_galore, low_rank.galore),
    }[name]
    first, second = gaussian(2, M, M, seed=5)
    u = np.linalg.qr(first)[0]
    inside, outside = u[:, :RANK], u[:, RANK:]  # The gradient moves to the latter.
    noise = gaussian(8, RANK, N, seed=6) + 3 * gaussian(RANK, N, seed=7)
    moving = np.stack([(inside if t < 2 else outside) @ x for t, x in enumerate(noise)])
    moving[2:] += 0.01 * inside @ noise[0]
    steady = second[:, :RANK] @ noise
    below, interval = 0.5, 5
    options = {"rank": RANK, "side": "short", "basis": "svd"}
    tx = recipe(renew_below=below, update_interval=interval, **options)

    def body(state, kernels):
        updates, state = tx.update(kernels, state)
        return state, updates

    kernels = {"a": np.swapaxes(moving, 1, 2), "b": np.swapaxes(steady, 1, 2)}
    start = tx.init(jax.tree.map(lambda x: jnp.asarray(x[0]), kernels))
    run = jax.jit(lambda s, g: jax.lax.scan(body, s, g))
    got = run(start, jax.tree.map(jnp.asarray, kernels))[1]
    for name, stream in (("a", moving), ("b", steady)):
        state, never = {}, {}
        step = functools.partial(reference, rank=RANK, interval=interval)
        want = [step(g, state, below=below) for g in stream]
        plain = [step(g, never) for g in stream]
        updates = np.swapaxes(got[name], 1, 2)
        np.testing.assert_allclose(updates, want, atol=1e-10)
        gap = np.abs(np.subtract(want, plain)).max(axis=(1, 2)) > 0.01
        assert gap[2] == (name == "a")
        assert not gap[:2].any()


@pytest.mark.slow
def test_sizes_of_sumos_update():
    """RMS 0.2 sqrt(r / min(m, n)), or as printed, or 0.2; NS5 is near both."""
    g = np.float32(grads(1))
    rms = lambda **options: np.sqrt(
        np.mean(run(om.scale_by_sumo(rank=RANK, **options), g)[0] ** 2)
    )
    np.testing.assert_allclose(rms(), 0.2 * (RANK / M) ** 0.5, rtol=1e-5)
    printed = rms(scaling="sqrt_max")
    np.testing.assert_allclose(printed, (RANK / M) ** 0.5, rtol=1e-5)
    np.testing.assert_allclose(rms(scaling="rms", scale=2.0), 0.4, rtol=1e-5)
    ablation = rms(scaling="none", polar=newton_schulz)
    exact = (RANK / (M * N)) ** 0.5
    assert 0.68 < ablation / exact < 1.14
    assert abs(ablation / exact - 1) > 1e-3


@pytest.mark.usefixtures("x64")
def test_newton_schulz_keeps_the_bound_of_lemma_3_2():
    """For the cubic iteration from the spectral norm, kappa that of M M'.

    From the Frobenius norm, as the kernel starts, the bound does not hold.
    """
    for decay in (1.1, 1.5, 3.0, 10.0):
        s = decay ** -np.arange(4.0)
        x = matrix_with_singular_values(s, 4, 7, seed=3)
        exact = ref.polar(x)
        for steps in range(1, 6):
            bound = 2 * (1 - (s[-1] / s[0]) ** 2) ** (2**steps)
            spectral = ref.cubic(x, steps, lambda x: np.linalg.norm(x, 2))
            assert np.linalg.norm(exact - spectral) <= bound + 1e-14
            if (decay, steps) == (1.1, 2):
                frobenius = ref.cubic(x, steps, np.linalg.norm)
                assert 3 < np.linalg.norm(exact - frobenius) / bound < 7
                options = {"coefficients": CUBIC, "steps": 2, "eps": 0.0}
                y = jax.jit(functools.partial(newton_schulz, **options))(x)
                np.testing.assert_allclose(y, frobenius, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_fira_without_its_residual_is_galore():
    options = {"rank": RANK, "update_interval": INTERVAL}
    want = run(om.scale_by_galore(**options), grads())[0]
    got = run(om.scale_by_fira(residual_scale=0.0, **options), grads())[0]
    np.testing.assert_allclose(got, want, atol=1e-14)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_apollo_changes_nothing_but_sizes():
    """Per channel the columns of G, per tensor G; two projections, two sizes."""
    g = grads(1)
    options = {"rank": RANK, "limiter": None}
    drawn = run(om.scale_by_apollo(**options), g)[0] / g
    found = run(om.scale_by_apollo_svd(**options), g)[0] / g
    for ratio in (drawn, found):
        np.testing.assert_allclose(ratio, ratio[:, :1] + 0 * g, rtol=1e-9)
        assert np.ptp(ratio) > 0.1
    assert np.abs(drawn / found - 1).max() > 0.1
    mini = run(om.scale_by_apollo_mini(limiter=None), g)[0] / g
    np.testing.assert_allclose(mini, mini[:, :1, :1] + 0 * g, rtol=1e-9)
    # Adam's first answer has entries of one.
    u, _, _ = np.linalg.svd(g[0])
    sigma = u[:, :RANK].T @ g[0]
    want = RANK**0.5 / np.linalg.norm(sigma, axis=0)
    np.testing.assert_allclose(found[0, 0], want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_ldadam_at_full_rank_leaves_nothing_out():
    updates, states = run(om.scale_by_ldadam(rank=1.0), grads())
    (error,) = states.error.values()
    np.testing.assert_allclose(error, 0, atol=1e-12)
    alone, _ = run(om.scale_by_ldadam(rank=1.0, error_feedback=False), grads())
    np.testing.assert_allclose(updates, alone, atol=1e-11)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
def test_ldadam_does_not_lose_what_its_subspaces_leave_out():
    """Without momentum, all gradients so far are what was projected, and the error.

    The moments of no momentum are the coordinates, so what was projected is known.
    """
    stream = grads()
    _, states = run(om.scale_by_ldadam(rank=RANK, b1=0.0), stream)
    part = lambda tree: np.asarray(next(iter(tree.values())))[:, 0]
    projected = part(states.vectors) @ part(states.mu)
    whole = np.cumsum(projected, axis=0) + part(states.error)
    np.testing.assert_allclose(whole, np.cumsum(stream, axis=0), atol=1e-12)
    assert np.linalg.norm(part(states.error)[-1]) > 0.1


def of_a_matrix(tx, m, n):
    """Elements of the state of one m x n matrix: arrays, and numbers."""
    params = {"kernel": zeros(n, m)}
    state = jax.eval_shape(tx.init, params).inner_state
    sizes = [x.size for x in jax.tree.leaves(state)]
    return sum(s for s in sizes if s > 1), sizes.count(1)


def test_states_have_the_papers_sizes():
    m, n, r = 5, 7, 3
    for sides in ((m, n), (n, m)):
        size = lambda recipe, s=sides, **options: of_a_matrix(recipe(**options), *s)
        # A limiter's norm, the weight of v, and counts of the block and of m.
        assert size(om.scale_by_sumo, rank=r) == (n * r + m * r, 2)
        assert size(om.scale_by_sumo, rank=r, limiter=None) == (n * r + m * r, 1)
        assert size(om.scale_by_galore, rank=r) == (2 * n * r + m * r, 3)
        assert size(om.scale_by_fira, rank=r) == (2 * n * r + m * r, 4)
        assert size(om.scale_by_fira_plus, rank=r) == (2 * n * r + m * r, 3)
        assert size(om.scale_by_apollo, rank=r) == (2 * n * r, 4)
        assert size(om.scale_by_apollo_svd, rank=r) == (2 * n * r + m * r, 4)
        assert size(om.scale_by_apollo_mini) == (2 * n, 4)
        moments = 2 * n * r + m * r
        assert size(om.scale_by_ldadam, rank=r) == (m * n + moments, 1)
        assert size(om.scale_by_ldadam, rank=r, error_feedback=False) == (moments, 1)


BASIS = {"syevd": 18, "potrf": 18, "trsm": 18}


@pytest.mark.broad
@pytest.mark.parametrize(
    ("recipe", "largest"),
    [
        # The polar factor: Householder of 40 x 10, SVD of 10 x 10. A basis: 10 + 8.
        (om.scale_by_sumo, BASIS | {"gesdd": 10, "geqrf": 10, "orgqr": 10}),
        (om.scale_by_fira, BASIS),
        (om.scale_by_apollo, {}),
        (om.scale_by_ldadam, BASIS),
    ],
)
def test_no_decomposition_of_a_full_side_in_the_default_step(recipe, largest):
    params = {"kernel": jax.ShapeDtypeStruct((48, 40), jnp.float32)}
    tx = recipe(rank=10)
    state = jax.eval_shape(tx.init, params)
    text = jax.jit(tx.update).lower(params, state).compile().as_text()
    found = re.findall(r"= \(?(\S+\[[\d,]*\]).*custom_call_target=\"(\w+)\"", text)
    sides = {}
    for shape, target in found:
        name = re.sub("^lapack_.|_ffi$", "", target)
        last = re.findall(r"\d+", shape.split("[")[1])[-1:]
        sides[name] = max(sides.get(name, 0), *map(int, last))
    assert sides == largest


def test_last_layer_and_errors():
    params = {"up": zeros(4, 8), "lm_head": {"kernel": zeros(4, 16)}}
    recipes = (om.sumo, om.fira, om.fira_plus, om.apollo, om.apollo_mini)
    recipes = (*recipes, om.apollo_svd, om.ldadam)
    for recipe in recipes:
        held = []
        for last_layer in ("other", "method"):
            tx = recipe(0.02, last_layer=last_layer)
            state = jax.eval_shape(tx.init, params)
            held.append(len(state.manifest))
        assert held == [1, 2]
        for name, value in (("scale", 0.0), ("side", "all"), ("b1", 1.0)):
            if (recipe, name) == (om.ldadam, "scale"):
                continue  # It has none.
            with pytest.raises(ValueError, match=f"`{name}`"):
                recipe(0.02, **{name: value})
    for recipe, options in (
        (om.sumo, {"polar": "svd"}),
        (om.sumo, {"scaling": "norm"}),
        (om.sumo, {"limiter": 0.0}),
        (om.sumo, {"max_shrink": 0.5}),
        (om.sumo, {"renew_below": 0.0}),
        (om.sumo, {"side": "all"}),
        (om.fira, {"residual_scale": -1.0}),
        (om.fira, {"basis": "gaussian"}),
        (om.apollo, {"rank": 0}),
        (om.apollo, {"limiter": -1.0}),
        (om.apollo_svd, {"max_shrink": 0.5}),
        (om.ldadam, {"rho": 1.0}),
        (om.ldadam, {"start": "svd"}),
    ):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
            recipe(0.02, **options)
