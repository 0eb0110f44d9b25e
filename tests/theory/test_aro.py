"""The statements of ARO, checked in float64.

Elsewhere: Eq. 47 on a whole LLaMA, with the wrong sides as a control
(`layout/test_residual.py`); Remark 5, that an equivariant base stays as it is, Section
3.4, row norms as one power step whose fixed point is the polar factor, and that updates
turn with the gradients (`transforms/test_rotate.py`).
"""

import dataclasses
from functools import partial
from math import erf

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian, orthonormal
from flax import nnx

import optax_matrix as om
from examples.pretrain.config import SIZES
from examples.pretrain.model import RMSNorm
from optax_matrix.linalg import scale_rows, sinkhorn

pytestmark = pytest.mark.usefixtures("x64")

SHAPE = (4, 16)
# The first two are derivatives of dual norms (of the largest entry, of the longest
# row); Sinkhorn's is not one.
BASES = {
    "sign": optax.scale_by_sign(),
    "row_norm": om.equilibrate(partial(scale_rows, eps=0.0)),
    "sinkhorn": om.equilibrate(sinkhorn),
}
DUAL = ["sign", "row_norm"]


def path(base, policy, g, steps):
    """Updates R f(R'G) for one gradient, again and again."""
    tx = om.rotate(BASES[base], policy=policy, side="out")

    def body(state, _):
        updates, state = tx.update({"w": g}, state)
        return state, updates["w"]

    g = jnp.asarray(g)
    run = jax.jit(lambda: jax.lax.scan(body, tx.init({"w": g}), length=steps)[1])
    return np.asarray(run())


def unit(x):
    return x / np.linalg.norm(x)


# Remark 18 and Theorem C.1: the objective J(R) = <G, R f(R'G)>, and what it costs.


def objectives(base, policy, seed):
    """J at the identity and after each of 20 steps."""
    g = gaussian(8, 8, seed=seed)
    updates = [path(base, "identity", g, 1), path(base, policy, g, 20)]
    return np.einsum("ij,tij->t", g, np.concatenate(updates))


@pytest.mark.broad
@pytest.mark.parametrize("base", DUAL)
def test_remark_18_polar_rotations_never_lower_the_objective(base):
    """J does not fall from step to step, where f is the derivative of a dual norm."""
    for seed in range(3):
        values = objectives(base, "polar", seed)
        assert np.diff(values).min() > -1e-12 * values[0]
        assert values[-1] > 1.02 * values[0]


@pytest.mark.broad
def test_remark_18_needs_the_polar_factor_and_a_dual_norm():
    """With the Q of QR, as ARO has, or with Sinkhorn's base J falls at some step."""
    for base, policy in (("sign", "aro"), ("sinkhorn", "polar")):
        values = objectives(base, policy, seed=1)
        assert np.diff(values).min() < -1e-5 * values[0], (base, policy)


def alignment(c, toward, m, v, w):
    """cos of the update v and a gradient at the angle arccos(c) from the momentum m.

    Of all such gradients, the one with `toward` = 1 is the nearest to v.
    """
    k = np.sum(m * v)
    u = unit(v - k * m)
    w = unit(w - np.sum(w * m) * m - np.sum(w * u) * u)
    rest = toward * u + (1 - toward**2) ** 0.5 * w
    return np.sum((c * m + (1 - c**2) ** 0.5 * rest) * v)


@pytest.mark.parametrize("base", DUAL)
@pytest.mark.parametrize("policy", ["identity", "polar"])
def test_theorem_c_1_momenta_whose_update_raises_the_loss(base, policy):
    """<G, R f(R'M)> < 0 if cos(G, M) < -1 / sqrt(1 + k^2), k = cos(M, R f(R'M)) > 0.

    True, but not sharp: -sqrt(1 - k^2) is the largest cosine below which the update is
    always misaligned, since the proof bounds the part across M by the whole update.
    """
    m = unit(gaussian(*SHAPE, seed=3))
    v = unit(path(base, policy, m, 1)[0])
    k, w = np.sum(m * v), gaussian(*SHAPE, seed=4)
    assert 0 < k < 1
    printed, sharp = -1 / (1 + k**2) ** 0.5, -((1 - k**2) ** 0.5)
    assert printed < sharp
    for toward in np.linspace(-1, 1, 21):
        for c in np.linspace(-1, printed - 1e-9, 11):
            assert alignment(c, toward, m, v, w) < 0
        assert alignment(sharp - 1e-6, toward, m, v, w) < 0
    assert alignment(sharp + 1e-6, 1.0, m, v, w) > 0
    # Of a direction that is no ascent (k < 0) the theorem would be false.
    assert alignment(printed - 1e-3, -1.0, m, -v, w) > 0


def test_theorem_c_1_a_larger_objective_enlarges_the_danger_region():
    """The numerator of k is J; both limits rise with k."""
    m = unit(gaussian(*SHAPE, seed=3))
    cosines = [
        np.sum(m * unit(path("sign", p, m, 1)[0])) for p in ("identity", "polar")
    ]
    assert cosines[0] < cosines[1]
    k = np.linspace(0.01, 0.99, 99)
    assert (np.diff(-1 / np.sqrt(1 + k**2)) > 0).all()
    assert (np.diff(-np.sqrt(1 - k**2)) > 0).all()


# Equation 47: what makes the residual stream symmetric.


def test_equation_47_rms_norm_turns_with_its_input_if_its_weights_are_one():
    """norm(x R) = norm(x) R for weights of one; other weights break the symmetry."""
    config = dataclasses.replace(SIZES["tiny"], dtype=jnp.float64)
    norm = RMSNorm(config, rngs=nnx.Rngs(0))
    x, r = gaussian(3, config.embed), orthonormal(config.embed, config.embed)
    gap = lambda: np.abs(norm(jnp.asarray(x @ r)) - norm(jnp.asarray(x)) @ r).max()
    assert gap() < 1e-6
    weights = jax.tree.leaves(nnx.state(norm, nnx.Param))
    np.testing.assert_array_equal(weights, 1)
    uneven = lambda w: w * jnp.linspace(0.5, 1.5, config.embed, dtype=w.dtype)
    nnx.update(norm, jax.tree.map(uneven, nnx.state(norm, nnx.Param)))
    assert gap() > 0.1


# Appendix C: E and Var of S_A = <G, R sign(R'(G + noise))> for sign as the base.


def spectra(m, ratio=0.1, power=1.0):
    """D and lambda: D_i = i^-power, lambda_i / D_i = i^-ratio (Appendix C.3)."""
    i = np.arange(1.0, m + 1)
    return i**-power, i ** (-power - ratio)


def limits_at_low_snr(r, d, values):
    """E and Var of S_A to leading order in G, in the eigenbasis of both matrices.

    E = sqrt(2 / pi) sum_i (R'GG'R)_ii / sqrt(S_ii), Var = (2 / pi) sum_ik (R'GG'R)_ik
    arcsin(S_ik / sqrt(S_ii S_kk)) with S = R' Sigma R (Lemma D.1).
    """
    gram, cov = (r.T * values) @ r, (r.T * d) @ r
    size = np.sqrt(np.diagonal(cov))
    expected = np.sqrt(2 / np.pi) * np.sum(np.diagonal(gram) / size)
    angles = np.arcsin(np.clip(cov / np.outer(size, size), -1, 1))
    np.fill_diagonal(angles, np.pi / 2)
    return expected, 2 / np.pi * np.sum(gram * angles)


def plane_rotations(m, angle):
    """Rotations by one angle in every coordinate plane."""
    for i in range(m):
        for j in range(i + 1, m):
            r = np.eye(m)
            r[i, i] = r[j, j] = np.cos(angle)
            r[i, j], r[j, i] = -np.sin(angle), np.sin(angle)
            yield r


def curvatures(d, values):
    """Changes of E and Var in every plane, over the square of a small angle."""
    base = np.array(limits_at_low_snr(np.eye(d.size), d, values))
    near, far = (
        np.array([limits_at_low_snr(r, d, values) for r in plane_rotations(d.size, t)])
        for t in (1e-3, 2e-3)
    )
    np.testing.assert_allclose(far - base, 4 * (near - base), rtol=0.01, atol=1e-13)
    return (near - base) / 1e-6


def test_theorems_c_2_and_c_3_eigenvectors_minimize_mean_and_variance_locally():
    """E and Var rise in every plane around R = EVD(GG'), under RCM; noise dominates.

    Without the order that RCM asks for they need not: E falls in some plane where the
    ratios lambda / D ascend steeply. For Var it suffices that lambda and D have the
    same order, so that RCM asks for more than C.2 needs.
    """
    d, values = spectra(5)
    assert (curvatures(d, values) > 1e-3).all()
    d, values = spectra(5, ratio=-0.9)  # Same order, ascending ratios.
    mean, variance = curvatures(d, values).T
    assert mean.min() < -1e-3
    assert variance.min() > 1e-3
    d, values = spectra(5, ratio=-1.5)  # The order of lambda reversed.
    assert curvatures(d, values)[:, 1].min() < -1e-3


def samples(r, g, noisy):
    """S_A for every noisy gradient."""
    return np.sum((r.T @ g) * np.sign(r.T @ noisy), axis=(-2, -1))


def noise(root, shape, count, seed):
    return root @ gaussian(count, *shape, seed=seed)


def test_theorems_c_2_and_c_3_limits_are_those_of_samples():
    """At a signal of 1/20 of the noise; and E exactly, by the error function."""
    d, values = spectra(4)
    u, v = orthonormal(4, 4, 1), orthonormal(4, 4, 2)
    r = orthonormal(4, 4, 3)
    g = 0.05 * (u * values**0.5) @ v.T
    drawn = samples(r, g, g + noise((u * d**0.5) @ u.T, (4, 4), 100_000, 5))
    mean, variance = limits_at_low_snr(u.T @ r, d, 0.05**2 * values)
    deviation = np.sqrt(variance / drawn.size)
    size = np.sqrt(np.diagonal(r.T @ (u * d) @ u.T @ r))[:, None]
    exact = np.sum((r.T @ g) * np.vectorize(erf)((r.T @ g) / size / 2**0.5))
    assert mean == pytest.approx(exact, rel=2e-3)
    assert abs(drawn.mean() - exact) < 4 * deviation
    assert drawn.var() == pytest.approx(variance, rel=0.02)


def aro_rotation(start, g):
    return np.asarray(
        om.linalg.qr_householder(
            om.linalg.cross_gram(jnp.asarray(g), jnp.asarray(np.sign(start.T @ g)))
        )
    )


def polar_rotation(start, g):
    u, _, vt = np.linalg.svd(g @ np.sign(start.T @ g).T)
    return u @ vt


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(3))
def test_figure_25_mean_and_variance_of_the_alignment_at_a_high_snr(seed):
    """Eigenvectors have about the least mean and variance, and ARO more of both.

    The paper's data (s_g = 1, s_sigma = 0.1, powers 1 and 0.1), 20 x 20, 400 draws.
    Its qualitative order: those of the eigenvectors are below those of all random
    rotations and near the least of rotations close by, though not always the least.
    Those of ARO's step are larger, but below those of random rotations, and smaller if
    it starts near the eigenvectors. Those of the polar rotation are large.
    """
    m = 20
    d, values = spectra(m)
    u, v = orthonormal(m, m, seed), orthonormal(m, m, seed + 100)
    g = (u * values**0.5) @ v.T
    noisy = g + noise((u * (0.1 * d) ** 0.5) @ u.T, (m, m), 400, seed + 200)
    rng = np.random.default_rng(seed + 300)
    turn = lambda x: np.linalg.qr(np.eye(m) + 0.1 * (x - x.T) / m**0.5)[0]
    near = [u @ turn(rng.standard_normal((m, m))) for _ in range(20)]
    rotations = {
        "eigen": [u],
        "near": near,
        "random": [np.linalg.qr(rng.standard_normal((m, m)))[0] for _ in range(20)],
        "aro, near": [aro_rotation(r, g) for r in near[:5]],
        "polar": [polar_rotation(np.eye(m), g)],
    }
    far = [np.eye(m), *rotations["random"][:4]]
    rotations["aro, far"] = [aro_rotation(r, g) for r in far]
    for f, slack in ((np.mean, 1.02), (np.var, 1.15)):
        of = {
            name: np.array([f(samples(r, g, noisy)) for r in group])
            for name, group in rotations.items()
        }
        eigen, polar = of["eigen"][0], of["polar"][0]
        assert eigen < 0.95 * of["random"].min()
        assert eigen < slack * of["near"].min()
        near, far = of["aro, near"].mean(), of["aro, far"].mean()
        assert eigen < near < far < of["random"].min()
        assert polar > np.median(of["random"])
