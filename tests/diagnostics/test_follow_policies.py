"""Policies along one trajectory and the alignment score against NumPy, float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _matrices import gaussian, matrix_with_singular_values, polar, strict
from _reference import rotations as reference

import optax_matrix as om
from optax_matrix import diagnostics as d

SHAPES = {"wide": (4, 7), "tall": (7, 4), "square": (5, 5)}


def inner(x, y):
    return (np.asarray(x, np.float64) * np.asarray(y, np.float64)).sum((-2, -1))


def test_alignment_score_is_a_cosine_per_matrix():
    x, y = gaussian(3, 4, 5), gaussian(3, 4, 5, seed=1)
    want = inner(x, y) / (inner(x, x) * inner(y, y)) ** 0.5
    with strict():
        got = jax.jit(d.alignment_score)(jnp.float32(1e25 * x), jnp.float32(1e-25 * y))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert d.alignment_score(
        jnp.float32(x[0]), jnp.float32(-2 * x[0])
    ) == pytest.approx(-1)
    assert d.alignment_score(jnp.zeros((2, 2)), jnp.ones((2, 2))) == 0
    assert d.alignment_score(jnp.ones((2, 2)), jnp.zeros((2, 2))) == 0


@pytest.mark.broad
def test_row_norms_take_the_root_of_the_condition_number():
    """ARO, Section 5.3: along the eigenvectors M D' is U S V'V, and M M'R is U S^2."""
    m = matrix_with_singular_values(np.geomspace(1, 1e-2, 6), 6, 20)
    left = np.linalg.svd(m)[0]
    direction = om.linalg.scale_rows(jnp.asarray(left.T @ m), eps=0.0)
    kappa = lambda x: (s := np.linalg.svd(x, compute_uv=False))[0] / s[-1]
    np.testing.assert_allclose(kappa(m @ np.asarray(direction).T), 1e2, rtol=1e-2)
    np.testing.assert_allclose(kappa(m @ m.T @ left), 1e4, rtol=1e-2)


def follow(policy, momenta, f):
    """Updates under a policy, by its definition, with rows that rotate."""
    r = np.eye(momenta.shape[-2])
    for m in momenta:
        direction = f(r.T @ m)
        if policy == "aro":
            r = reference.qr(m @ direction.T)
        elif policy == "eigen":
            r = reference.qr(m @ m.T @ r)
        elif policy == "eigen_exact":
            r = np.linalg.svd(m)[0]
        elif policy == "polar":
            r = polar(m @ direction.T)
        yield r @ f(r.T @ m)


@pytest.mark.parametrize("policy", ["identity", "eigen", "eigen_exact", "polar", "aro"])
def test_policies_follow_one_trajectory(policy):
    momenta, gradients = gaussian(3, 2, 4, 9), gaussian(3, 2, 4, 9, seed=1)
    # A smooth base: of signs, those of tiny entries depend on rounding.
    (got,) = d.follow_policies(
        jnp.float32(momenta),
        jax.nn.soft_sign,
        [policy],
        gradients=jnp.float32(gradients),
    ).values()
    assert got.objective.shape == got.alignment.shape == (3, 2)
    for i in range(2):
        updates = np.stack([*follow(policy, momenta[:, i], lambda x: x / (1 + abs(x)))])
        want = inner(momenta[:, i], updates)
        np.testing.assert_allclose(got.objective[:, i], want, rtol=1e-3)
        g = gradients[:, i]
        cosine = inner(g, updates) / (inner(g, g) * inner(updates, updates)) ** 0.5
        np.testing.assert_allclose(got.alignment[:, i], cosine, atol=1e-3)


@pytest.mark.slow
def test_ascent_and_own_policies_are_followed_by_name():
    momenta = jnp.float32(gaussian(2, 3, 8, 20))
    stay = om.transforms.Policy(lambda side: side.rotation)
    gentle = om.transforms.rgd(0.02, rounds=5)
    policies = {"rgd": "rgd", "gentle": gentle, "stay": stay, "identity": "identity"}
    got = d.follow_policies(momenta, om.linalg.sinkhorn, policies)
    assert list(got) == list(policies)
    j = {name: curves.objective for name, curves in got.items()}
    assert all(curves.alignment is None for curves in got.values())
    np.testing.assert_allclose(j["stay"], j["identity"], rtol=1e-5)
    assert (j["gentle"].mean(1) > j["identity"].mean(1)).all()
    assert (j["rgd"].mean(1) > j["gentle"].mean(1)).all()
    np.testing.assert_allclose(
        j["identity"][0],
        jnp.sum(momenta[0] * om.linalg.sinkhorn(momenta[0]), axis=(-2, -1)),
        rtol=1e-5,
    )


@pytest.mark.broad
def test_states_of_bases_go_on_and_sides_are_chosen():
    """Adam's second moment remembers; a tall matrix may turn on its long side."""
    momenta = jnp.float32(gaussian(2, 6, 4))
    adam = om.scale_by_second_moment(0.5)
    (got,) = d.follow_policies(momenta, adam, ["identity"]).values()
    state, want = adam.init(momenta[0]), []
    for m in momenta:
        update, state = jax.jit(adam.update)(m, state)
        want.append(jnp.sum(m * update))
    np.testing.assert_allclose(got.objective, want, rtol=1e-5)
    sides = [
        d.follow_policies(momenta, jnp.sign, ["polar"], side=side)["polar"].objective
        for side in ("short", "in", "out")
    ]
    np.testing.assert_allclose(sides[0], sides[1], rtol=1e-6)
    assert np.abs(sides[0] - sides[2]).min() > 1e-3


def test_zero_momenta_give_zero():
    got = d.follow_policies(
        jnp.zeros((2, 3, 4)), jnp.sign, ["aro"], gradients=jnp.ones((2, 3, 4))
    )
    np.testing.assert_array_equal(got["aro"].objective, 0)
    np.testing.assert_array_equal(got["aro"].alignment, 0)


def test_mistakes_are_named():
    m = jnp.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"`momenta` must be matrices \(steps"):
        d.follow_policies(m[0], jnp.sign)
    with pytest.raises(ValueError, match=r"`gradients` must have the shape"):
        d.follow_policies(m, jnp.sign, gradients=m[:1])
    with pytest.raises(ValueError, match=r"`policies` must be one of .*got 'arro'"):
        d.follow_policies(m, jnp.sign, ["arro"])
    with pytest.raises(ValueError, match=r"`policies` must be names"):
        d.follow_policies(m, jnp.sign, [om.transforms.rgd()])
    with pytest.raises(ValueError, match=r"`base` must be a function"):
        d.follow_policies(m, "sign")
    with pytest.raises(ValueError, match=r"`side` must be one of"):
        d.follow_policies(m, jnp.sign, ["aro"], side="left")
