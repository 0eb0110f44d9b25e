"""The float64 references of the rotating methods keep the identities of the theory.

Nothing of the package is used: what later tests compare with is itself compared here,
method against method and against closed forms.
"""

import functools
import itertools

import numpy as np
import pytest
from _matrices import gaussian, orthonormal
from _reference import rotations as ref
from _reference.kernels import polar

BASES = {
    "sign": ref.sign,
    "row_norm": ref.row_norm,
    "sinkhorn": ref.sinkhorn,
    "adam": ref.two_fold_adam,
}
SHAPE = (5, 9)
ROUNDING = 1e-10


def gradients(steps=6, shape=SHAPE, seed=0):
    """A drifting direction with noise, so that rotations have something to track."""
    rng = np.random.default_rng(seed)
    mean = rng.standard_normal(shape)
    return [mean + 0.3 * t * rng.standard_normal(shape) for t in range(steps)]


def updates(step, gs, **options):
    state = {}
    return [step(g, state, **options) for g in gs]


def assert_same(ours, theirs, atol=ROUNDING):
    np.testing.assert_allclose(np.stack(ours), np.stack(theirs), atol=atol)


def emas(gs, b):
    m, out = np.zeros_like(gs[0]), []
    for g in gs:
        m = b * m + (1 - b) * g
        out.append(m)
    return out


# Matrix functions


def test_qr_has_a_positive_diagonal():
    x = gaussian(3, 7, 4)
    q = ref.qr(x)
    r = np.swapaxes(q, -1, -2) @ x
    np.testing.assert_allclose(np.tril(r, -1), 0, atol=ROUNDING)
    assert np.diagonal(r, axis1=-2, axis2=-1).min() > 0


def test_eigenvectors_descend():
    a = gaussian(6, 6)
    a = a @ a.T
    q = ref.eigenvectors(a)
    w = np.diagonal(q.T @ a @ q)
    np.testing.assert_allclose(q.T @ a @ q, np.diag(w), atol=ROUNDING)
    assert (np.diff(w) < 0).all()


@pytest.mark.parametrize("base", [ref.row_norm, ref.sinkhorn, ref.sign])
def test_bases_have_mean_square_one_and_keep_zeros(base):
    d, _ = base(gaussian(*SHAPE))
    np.testing.assert_allclose(np.mean(d**2), 1)
    x = gaussian(*SHAPE)
    x[2] = x[:, 3] = 0
    d, _ = base(x)
    assert not d[2].any()
    assert not d[:, 3].any()


def test_sinkhorn_is_converged_on_dense_matrices():
    d, _ = ref.sinkhorn(gaussian(*SHAPE), rounds=40)
    np.testing.assert_allclose(np.mean(d**2, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.mean(d**2, axis=0), 1, rtol=1e-6)


@pytest.mark.parametrize(("rounds", "power"), [(4, 1), (5, -1)])
def test_simultaneous_sinkhorn_oscillates_on_diagonal_matrices(rounds, power):
    w = np.array([1.0, 2.0, 4.0, 8.0])
    d, _ = ref.sinkhorn(np.diag(w), rounds=rounds)
    expected = np.diag(w**power)
    np.testing.assert_allclose(
        d / np.linalg.norm(d), expected / np.linalg.norm(expected)
    )


# ARO


@pytest.mark.parametrize("base", [ref.identity, ref.orthogonal])
@pytest.mark.parametrize("policy", ["aro", "eigen", "eigenvectors", "polar"])
def test_aro_leaves_an_equivariant_base_as_it_is(base, policy):
    gs = gradients()
    plain = [base(m)[0] for m in emas(gs, 0.95)]
    assert_same(updates(ref.aro, gs, base=base, policy=policy), plain)


def test_aro_with_row_norms_is_eigen_row_norm():
    gs = gradients()
    one = updates(ref.aro, gs, base=ref.row_norm)
    other = updates(ref.aro, gs, base=ref.row_norm, policy="eigen")
    assert_same(one, other)


@pytest.mark.parametrize("base", ["sign", "sinkhorn", "adam"])
def test_aro_is_not_the_eigen_rotation_for_other_bases(base):
    gs = gradients()
    one = updates(ref.aro, gs, base=BASES[base])
    other = updates(ref.aro, gs, base=BASES[base], policy="eigen")
    assert np.linalg.norm(one[-1] - other[-1]) > 0.05 * np.linalg.norm(one[-1])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("policy", ["aro", "eigen", "polar", "rgd"])
def test_aro_is_equivariant(base, policy):
    gs, q = gradients(), orthonormal(5, 5, seed=7)
    one = updates(ref.aro, gs, base=BASES[base], policy=policy)
    turned = [q @ g for g in gs]
    other = updates(ref.aro, turned, base=BASES[base], policy=policy, r0=q)
    assert_same(other, [q @ d for d in one], atol=1e-7)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("policy", ["aro", "eigen"])
def test_the_signs_of_the_rotation_cancel(base, policy, monkeypatch):
    gs = gradients()
    one = updates(ref.aro, gs, base=BASES[base], policy=policy)
    signs = np.where(np.arange(5) % 2, 1.0, -1.0)
    straight = ref.qr
    monkeypatch.setattr(ref, "qr", lambda x: straight(x) * signs)
    assert_same(updates(ref.aro, gs, base=BASES[base], policy=policy), one)


@pytest.mark.parametrize("base", BASES)
def test_aro_does_not_depend_on_the_scale_of_the_gradients(base):
    gs = gradients()
    one = updates(ref.aro, gs, base=BASES[base])
    assert_same(updates(ref.aro, [1e-6 * g for g in gs], base=BASES[base]), one)


def test_without_rotation_it_is_the_base():
    gs = gradients()
    plain = [np.sign(m) for m in emas(gs, 0.9)]
    got = updates(ref.aro, gs, base=ref.sign, policy="identity", b1=0.9)
    assert_same(got, plain)


def test_the_fixed_point_with_row_norms_is_the_polar_factor():
    m = np.linspace(1, 3, 5)[:, None] * orthonormal(9, 5).T
    m = orthonormal(5, 5, seed=2) @ m
    last = updates(ref.aro, [m] * 200, base=ref.row_norm)[-1]
    np.testing.assert_allclose(last, np.sqrt(9) * polar(m), atol=1e-6)


def test_exact_eigenvectors_with_row_norms_are_the_polar_factor():
    gs = gradients()
    got = updates(ref.aro, gs, base=ref.row_norm, policy="eigenvectors")
    assert_same(got, [3 * polar(m) for m in emas(gs, 0.95)])


@pytest.mark.parametrize("base", ["sign", "row_norm", "sinkhorn"])
def test_the_objective_ranks_the_policies(base):
    """Figure 2: J of ARO exceeds that of the eigenvectors; Procrustes has the most."""
    f, sums = BASES[base], {}
    for policy in ("polar", "rgd", "aro", "eigenvectors"):
        for seed in range(30):
            m = gaussian(8, 16, seed=seed)
            r = ref.rotation(m, np.eye(8), f, None, policy)
            sums[policy] = sums.get(policy, 0) + ref.objective(m, r, f)
    assert sums["polar"] > sums["rgd"] > 1.01 * sums["aro"]
    assert sums["aro"] > 1.02 * sums["eigenvectors"]


def test_eigenvectors_have_the_least_objective_with_row_norms():
    # The sum of the norms of the rows of R' M is at least the nuclear norm of M.
    m = gaussian(8, 16)
    least = 4 * np.sum(np.linalg.svd(m, compute_uv=False))
    r = ref.rotation(m, np.eye(8), ref.row_norm, None, "eigenvectors")
    np.testing.assert_allclose(ref.objective(m, r, ref.row_norm), least)
    for seed in range(5):
        r = orthonormal(8, 8, seed=seed)
        assert ref.objective(m, r, ref.row_norm) > least


def test_riemannian_ascent_ascends_on_the_group():
    m, r = gaussian(6, 12), np.eye(6)
    values = [ref.objective(m, r, ref.sign)]
    for steps in (1, 3, 10):
        r = ref.riemannian_ascent(m, np.eye(6), ref.sign, steps=steps, step_size=0.05)
        np.testing.assert_allclose(r.T @ r, np.eye(6), atol=ROUNDING)
        values.append(ref.objective(m, r, ref.sign))
    assert (np.diff(values) > 0).all()


def test_the_look_ahead_of_a_stateful_base_is_forgotten():
    gs, b2 = gradients(), 0.9
    base = functools.partial(ref.two_fold_adam, b2=b2)
    state, v = {}, np.zeros(SHAPE)
    for g in gs:
        ref.aro(g, state, base=base)
        v = b2 * v + (1 - b2) * (state["r"].T @ state["m"]) ** 2
        np.testing.assert_allclose(state["base"], v, rtol=1e-12)


def test_zero_momentum_leaves_the_rotation():
    state = {}
    ref.aro(gaussian(*SHAPE), state, base=ref.sign, b1=0.0)
    r = state["r"]
    d = ref.aro(np.zeros(SHAPE), state, base=ref.sign, b1=0.0)
    assert not d.any()
    np.testing.assert_array_equal(state["r"], r)


def test_the_interval_keeps_the_rotation_between_refreshes():
    state, seen = {}, []
    for g in gradients():
        ref.aro(g, state, base=ref.sign, interval=3)
        seen.append(state["r"])
    same = [np.array_equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, False, True, True]


def test_rms_matching():
    d = ref.rms_matched(gaussian(*SHAPE))
    np.testing.assert_allclose(np.sqrt(np.mean(d**2)), 0.2)


# Eigen-Adam and SOAP


def adam(gs, b1, b2):
    m, v, out = np.zeros_like(gs[0]), np.zeros_like(gs[0]), []
    for g in gs:
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        out.append(m / np.sqrt(v))
    return out


def test_eigen_adam_in_the_identity_basis_is_adam_without_bias_correction():
    gs = gradients()
    got = updates(ref.eigen_adam, gs, basis=lambda q: np.eye(len(q)), b1=0.8, b2=0.95)
    assert_same(got, adam(gs, 0.8, 0.95))


def test_eigen_adam_is_adam_where_the_rows_are_uncorrelated():
    # The basis is then a permutation, always the same, which Adam does not see.
    rows = orthonormal(9, 5).T
    sizes = [3.0, 5.0, 1.0, 2.0, 4.0] + 0.1 * gaussian(6, 5)
    gs = [s[:, None] * rows for s in sizes]
    assert_same(updates(ref.eigen_adam, gs), adam(gs, 0.9, 0.9))


def test_soap_without_the_right_side_is_eigen_adam():
    gs = gradients()
    one = updates(ref.soap, gs, sides=("out",), interval=2)
    assert_same(one, updates(ref.eigen_adam, gs, interval=2))


def test_soap_without_any_side_is_adam():
    gs = gradients()
    assert_same(updates(ref.soap, gs, sides=()), adam(gs, 0.9, 0.9))


def test_soap_on_the_transpose_is_the_transpose():
    # Square, for the null space of a singular factor has no certain basis.
    gs = gradients(shape=(5, 5))
    one = updates(ref.soap, [g.T for g in gs])
    # Not the first: see the docstring of the reference.
    assert_same([d.T for d in one[1:]], updates(ref.soap, gs)[1:], atol=1e-7)
    left = updates(ref.soap, gs, sides=("out",))
    right = updates(ref.soap, [g.T for g in gs], sides=("in",))
    assert_same([d.T for d in right], left)


def test_the_first_step_of_soap_is_the_polar_factor_and_noise():
    # One gradient: its rotated form is diagonal, and Adam's first step its sign.
    g = gaussian(6, 6)
    factor = (1 - 0.9) / np.sqrt(1 - 0.99)
    (got,) = updates(ref.soap, [g], b1=0.9, b2=0.99)
    # What is off the diagonal is the sign of rounding errors.
    q = np.linalg.svd(g)
    np.testing.assert_allclose(
        np.diagonal(q[0].T @ got @ q[2].T), factor * np.ones(6), atol=ROUNDING
    )


def test_published_soap_without_sides_is_adam_from_the_second_step():
    gs = gradients()
    got = updates(ref.soap_as_published, gs, sides=(), b1=0.9, b2=0.95, eps=0.0)
    assert not got[0].any()
    scale = [np.sqrt(1 - 0.95**t) / (1 - 0.9**t) for t in range(1, 6)]
    expected = [s * d for s, d in zip(scale, adam(gs[1:], 0.9, 0.95), strict=True)]
    assert_same(got[1:], expected)


def test_published_soap_refreshes_by_a_power_step():
    gs, state = gradients(), {}
    for g in gs[:3]:
        ref.soap_as_published(g, state, interval=2)
    before = ref.eigenvectors(gs[0] @ gs[0].T)
    f = state["f"][0]
    order = np.argsort(-np.diagonal(before.T @ f @ before))
    np.testing.assert_allclose(state["q"][0], ref.qr(f @ before[:, order]), atol=1e-9)


# Shampoo, SPlus, Dion, Mousse


def test_the_first_step_of_shampoo_is_the_polar_factor():
    g = gaussian(6, 6)
    (got,) = updates(ref.shampoo, [g], eps=0.0)
    np.testing.assert_allclose(got, polar(g), atol=1e-7)


def test_one_sided_shampoo_whitens():
    gs = gradients()
    left = sum(g @ g.T for g in gs)
    state = {}
    got = [ref.shampoo(g, state, eps=1e-12) for g in gs][-1]
    right = sum(g.T @ g for g in gs) + 1e-12 * np.eye(9)
    quarter = [ref.symmetric_power(a, -0.25) for a in (left, right)]
    np.testing.assert_allclose(got, quarter[0] @ gs[-1] @ quarter[1], rtol=1e-5)


def test_shampoo_is_equivariant():
    gs, q = gradients(), orthonormal(5, 5, seed=7)
    one = updates(ref.shampoo, gs)
    assert_same(updates(ref.shampoo, [q @ g for g in gs]), [q @ d for d in one], 1e-8)


def test_splus_without_sides_is_sign_momentum():
    gs = gradients()
    got = updates(ref.splus, gs, sides=(), scale=14.0)
    assert_same(got, [np.sign(m) for m in emas(gs, 0.9)])


def test_splus_lags_one_refresh_behind_its_rotated_form():
    gs, state, plain = gradients(), {}, {}
    for t, g in enumerate(gs):
        basis = [state.get(k) for k in ("ql", "qr")]
        got = ref.splus(g, state, interval=1, scale=14.0)
        ref.splus_in_rotated_form(g, plain)
        if t:
            left, right = basis
            expected = left @ np.sign(left.T @ plain["m"] @ right) @ right.T
            np.testing.assert_allclose(got, expected, atol=ROUNDING)
    turned = state["ql"].T @ ref.eigenvectors(plain["l"])
    np.testing.assert_allclose(np.abs(turned), np.eye(5), atol=1e-9)


def test_one_sided_splus_of_one_gradient_is_eigen_sign():
    (got,) = updates(ref.splus_in_rotated_form, [gaussian(*SHAPE)], sides=("out",))
    (eigen,) = updates(
        ref.aro, [gaussian(*SHAPE)], base=ref.sign, policy="eigenvectors"
    )
    np.testing.assert_allclose(got, eigen, atol=ROUNDING)


def test_full_rank_dion_keeps_the_momentum_s_share():
    # P R' is the whole buffer, so that M <- mu (M + G).
    gs, state = gradients(shape=(5, 5)), {}
    m = np.zeros((5, 5))
    for g in gs:
        ref.dion(g, state, q0=np.eye(5), mu=0.9)
        m = 0.9 * (m + g)
        np.testing.assert_allclose(state["m"], m, atol=ROUNDING)


def test_dion_approaches_the_polar_factor_on_a_constant_momentum():
    # mu = 0 empties the buffer of what was applied: the gradient itself remains.
    g = orthonormal(5, 5) * np.linspace(2, 1, 5) @ orthonormal(5, 5, seed=3)
    got = updates(ref.dion, [g] * 100, q0=np.eye(5), mu=0.0)
    np.testing.assert_allclose(got[-1], polar(g), atol=1e-6)


def test_dion_of_low_rank_feeds_its_error_back():
    gs, state = gradients(), {}
    for g in gs:
        before = state.get("m", np.zeros(SHAPE)) + g
        d = ref.dion(g, state, q0=orthonormal(9, 2), mu=0.9)
        assert np.linalg.matrix_rank(d) == 2
        p = ref.qr(d @ state["q"])
        inside = p @ p.T @ before
        np.testing.assert_allclose(state["m"], before - 0.1 * inside, atol=ROUNDING)


def test_full_rank_dion_is_close_to_row_norms_but_not_equal():
    gs = gradients(steps=20, shape=(5, 5))
    one = updates(ref.dion, gs, q0=np.eye(5))
    other = updates(ref.aro, gs, base=ref.row_norm)
    angles = [
        np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)
        for a, b in zip(one, other, strict=True)
    ]
    assert angles[0] < 0.999
    assert angles[-1] > 0.95


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"sides": ()}], ids=str)
def test_mousse_without_whitening_is_muon(options):
    gs, m = gradients(), np.zeros(SHAPE)
    for got, g in zip(updates(ref.mousse, gs, **options), gs, strict=True):
        m = 0.95 * m + g
        np.testing.assert_allclose(got, polar(m), atol=ROUNDING)


def test_mousse_solves_its_trust_region():
    """Largest <M, D> over L^a D R^a of spectral norm one, before the grafting."""
    gs, state = gradients(), {}
    for g in gs:
        d = ref.mousse(g, state, graft=False, interval=1)
    left, right = (np.linalg.inv(state["root", s]) for s in ("out", "in"))
    inside = np.linalg.svd(left @ d @ right, compute_uv=False)
    np.testing.assert_allclose(inside, 1, atol=1e-8)
    whitened = state["root", "out"] @ state["m"] @ state["root", "in"]
    best = np.sum(np.linalg.svd(whitened, compute_uv=False))
    np.testing.assert_allclose(np.sum(state["m"] * d), best)


def test_mousse_is_grafted_and_free_of_scale():
    gs = gradients(shape=(5, 5))
    one = updates(ref.mousse, gs)
    np.testing.assert_allclose(np.linalg.norm(one[-1]), np.sqrt(5))
    assert_same(updates(ref.mousse, [1e-4 * g for g in gs]), one, atol=1e-7)


def test_mousse_with_the_half_root_on_one_side_is_shampoo_s_direction():
    # Whitened twice by L^(-1/2), a single gradient is L^(-1/2) times its polar factor.
    g = gaussian(*SHAPE)
    (got,) = updates(ref.mousse, [g], alpha=0.5, sides=("out",), eps=0.0)
    expected = ref.symmetric_power(g @ g.T, -0.5) @ polar(g)
    expected *= np.sqrt(5) / np.linalg.norm(expected)
    np.testing.assert_allclose(got, expected, atol=1e-7)
