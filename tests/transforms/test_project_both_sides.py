"""`project_both_sides`: low-rank SOAP, transport, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian

import optax_matrix as om
from optax_matrix.transforms.low_rank._project_both_sides import project_both_sides
from optax_matrix.transforms.low_rank._subspace_bases import gaussian_basis

SHAPE, RANK, INTERVAL, EPS = (2, 5, 8), 3, 3, 1e-6


def stream(steps=7):
    return gaussian(*SHAPE, seed=1) + gaussian(steps, *SHAPE, seed=2) / 2


def two_sided(inner, **options):
    exact = {"basis": "svd", "update_interval": INTERVAL, "phase": 0, "rank": RANK}
    return project_both_sides(inner, **exact | options)


def run(tx, grads):
    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, (updates["w"], state)

    grads = jnp.asarray(grads)
    scan = jax.jit(lambda s, g: jax.lax.scan(body, s, g))
    return scan(tx.init({"w": grads[0]}), grads)[1]


class Adam:
    """Adam of one matrix, whose first moment follows its bases."""

    def __init__(self, b1=0.9, b2=0.99):
        self.b1, self.b2, self.t, self.m, self.v = b1, b2, 0, 0.0, 0.0

    def __call__(self, g):
        self.t += 1
        g = np.where(np.abs(g) > 1e-12, g, 0)  # As the library does with noise.
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g * g
        root = np.sqrt(self.v / (1 - self.b2**self.t))
        return self.m / (1 - self.b1**self.t) / (root + EPS)


@pytest.mark.broad
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("transport", ["carry", "keep", "reset"])
def test_adam_inside_is_soap_of_low_rank(transport):
    """U Adam(U'GV) V', U and V the leading singular vectors of a recent gradient."""
    grads = stream()
    adam = optax.scale_by_adam(0.9, 0.99, eps=EPS)
    got, states = run(two_sided(adam, transport=transport), grads)
    for i in range(2):
        inner, u, v = Adam(), None, None
        for t, g in enumerate(grads[:, i]):
            if t % INTERVAL == 0:
                left, _, right = np.linalg.svd(g)
                old, (u, v) = (u, v), (left[:, :RANK], right[:RANK].T)
                if t and transport == "carry":
                    inner.m = (u.T @ old[0]) @ inner.m @ (old[1].T @ v)
                if transport == "reset":
                    inner = Adam()
                if transport == "keep":  # Their signs are the library's.
                    signs = (x[t, i] for x in bases(states))
                    u, v = (
                        np.sign(np.sum(a * b, 0)) * a
                        for a, b in zip((u, v), signs, strict=True)
                    )
            want = u @ inner(u.T @ g @ v) @ v.T
            np.testing.assert_allclose(got[t, i], want, atol=1e-6, err_msg=f"{t}")


def bases(states):
    inside = states.inner_state
    return np.asarray(states.basis["w"].vectors), np.asarray(inside.basis["w"].vectors)


@pytest.mark.usefixtures("x64")
@pytest.mark.broad
def test_the_first_update_of_adam_at_full_rank_is_the_polar_factor():
    grads = stream(1)
    adam = optax.scale_by_adam(eps=EPS)
    (got,) = run(two_sided(adam, rank=1.0), grads)[0]
    u, _, v = np.linalg.svd(grads[0], full_matrices=False)
    np.testing.assert_allclose(got, u @ v, atol=1e-4)


@pytest.mark.daily("gaussian", "randomized_svd")
@pytest.mark.broad
@pytest.mark.parametrize("basis", ["subspace", "gaussian", "randomized_svd"])
def test_state_is_two_bases_and_square_moments(basis):
    stored = gaussian_basis(stored=True) if basis == "gaussian" else basis
    tx = two_sided(optax.scale_by_adam(), basis=stored)
    updates, states = run(tx, np.float32(stream(4)))
    assert np.isfinite(updates).all()
    u, v = bases(states)
    assert (u.shape[1:], v.shape[1:]) == ((2, 5, RANK), (2, 8, RANK))
    inner = states.inner_state.inner_state
    assert inner.mu["w"].shape[1:] == (2, RANK, RANK)
    # What it returns lies in both spans.
    for x, axis in ((u, -2), (v, -1)):
        q = np.linalg.qr(x[-1])[0]
        p = q @ np.swapaxes(q, -1, -2)
        last = updates[-1]
        kept = p @ last if axis == -2 else last @ p
        np.testing.assert_allclose(kept, last, atol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("scale", [1e20, 1e-20, 0.0])
def test_extreme_gradients_of_bfloat16(scale):
    grads = jnp.asarray(scale * stream(2), jnp.bfloat16)
    inner = optax.chain(optax.ema(0.9), om.scale_by_second_moment(0.99))
    updates, _ = run(two_sided(inner), grads)
    assert updates.dtype == jnp.bfloat16
    assert bool(jnp.isfinite(updates).all())
    assert bool((updates != 0).any()) == (scale > 0)


@pytest.mark.slow
def test_rows_of_the_coordinates_are_those_of_u():
    """Also the gradient that `scale_by_second_moment` gets has this orientation."""
    seen = []

    def look(updates, state, params=None, *, gradient):
        del params
        seen.append((updates["w"], gradient["w"]))
        return updates, state

    inner = optax.GradientTransformationExtraArgs(lambda _: (), look)
    tx = two_sided(inner)
    g = {"w": jnp.float32(stream(1)[0])}
    _, state = tx.update(g, tx.init(g))
    ((sigma, same),) = seen
    u, v = state.basis["w"].vectors, state.inner_state.basis["w"].vectors
    np.testing.assert_allclose(sigma, u.mT @ g["w"] @ v, atol=1e-5)
    np.testing.assert_array_equal(sigma, same)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"transport": lambda s, _: s},
            "`transport` must be one of 'keep', 'carry', 'reset'",
        ),
        ({"basis": "gaussian", "transport": "carry"}, "`transport` must be 'keep' for"),
        ({"basis": "gaussian", "renew_below": 1.0}, "`renew_below` must be None for"),
        ({"transport": "reset", "renew_below": 1.0}, "not be 'reset' with renew_below"),
        ({"renew_below": -1.0}, "`renew_below` must be positive"),
    ],
)
def test_what_both_sides_do_not_support_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        two_sided(optax.scale_by_adam(), **options)


def test_states_that_carry_does_not_know_are_refused_at_init():
    tx = two_sided(optax.contrib.schedule_free_adamw(), transport="carry")
    with pytest.raises(ValueError, match="`transport` cannot tell how"):
        jax.eval_shape(tx.init, {"w": np.ones(SHAPE, np.float32)})


def test_ldadam_takes_one_side():
    with pytest.raises(ValueError, match="`side` must be one of"):
        om.transforms.scale_by_tracked_adam(side="both")
