"""`project_low_rank(momentum=)`: bases of the gradient, the momentum projected."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _matrices import gaussian
from _reference.low_rank import left_vectors
from _reference.rotations import over_root

import optax_matrix as om
from optax_matrix.transforms import subspace_basis, with_gradient
from optax_matrix.transforms.low_rank import svd_basis

B1, B2, INTERVAL = 0.7, 0.8, 3
pytestmark = pytest.mark.usefixtures("x64")


def stream(steps=7, shape=(4, 7)):
    return gaussian(*shape, seed=1) + gaussian(steps, *shape, seed=2)


def run(tx, grads):
    """Updates of one matrix, and the last state."""

    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, updates["w"]

    scan = jax.jit(lambda grads: jax.lax.scan(body, tx.init({"w": grads[0]}), grads))
    state, updates = scan(grads)
    return np.asarray(updates), state


project = functools.partial(
    om.project_low_rank, rank=2, basis=svd_basis("exact"), update_interval=INTERVAL
)


def restated(grads):
    """Adam of whole momenta in singular vectors of the gradient, the short side."""
    m = v = u = 0.0
    for t, g in enumerate(grads):
        m = B1 * m + (1 - B1) * g
        if t == 0 or (t + 1) % INTERVAL == 0:
            u = left_vectors(g, 2)
        v = B2 * v + (1 - B2) * (u.T @ g) ** 2
        yield u @ over_root(u.T @ m, v)


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_updates_are_those_of_the_formula(shape):
    grads = stream(shape=shape)
    moment = om.scale_by_second_moment(B2, bounded=False)
    got, state = run(project(moment, momentum=om.momentum(B1)), grads)
    turn = (lambda x: x) if shape == (4, 7) else np.transpose
    want = [turn(d) for d in restated([turn(g) for g in grads])]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert state.momentum.mu["w"].shape == shape  # In the frame of the parameters.


@pytest.mark.broad
def test_until_a_renewal_it_is_the_momentum_of_the_coordinates():
    """And after it no moment is left in the basis that was."""
    moments = with_gradient(
        optax.chain(om.momentum(B1), om.scale_by_second_moment(B2, bounded=False))
    )
    whole = om.scale_by_second_moment(B2, bounded=False)
    inside, _ = run(project(moments), stream())
    got, _ = run(project(whole, momentum=om.momentum(B1)), stream())
    np.testing.assert_allclose(got[:2], inside[:2], rtol=1e-9, atol=1e-12)
    assert np.abs(got[2] - inside[2]).max() > 0.01


@pytest.mark.broad
def test_with_drawn_bases_it_is_a_momentum_in_front():
    """With others a momentum in front has bases of its own."""
    moment, average = om.scale_by_second_moment(B2), om.momentum(B1)
    for basis, same in (("gaussian", True), (svd_basis("exact"), False)):
        make = functools.partial(om.project_low_rank, moment, rank=2, basis=basis)
        options = {"update_interval": INTERVAL}
        got, _ = run(make(momentum=average, **options), stream())
        front = with_gradient(optax.chain(average, make(**options)))
        want, _ = run(front, stream())
        assert np.allclose(got, want, rtol=1e-9, atol=1e-12) == same


@pytest.mark.broad
def test_the_basis_sees_gradients_and_what_combines_sees_momenta():
    """With a statistic that is tracked, and a residual."""
    grads, average = stream(), om.momentum(B1)
    rest = lambda g, projected, _, basis: g - basis @ projected
    options = {"rank": 2, "basis": subspace_basis(0.5, start="exact"), "seed": 3}
    plain = om.project_low_rank(optax.identity(), update_interval=2, **options)
    tx = om.project_low_rank(
        optax.identity(), combine=rest, momentum=average, update_interval=2, **options
    )
    (got, state), (_, held) = run(tx, grads), run(plain, grads)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-9),
        state.basis,
        held.basis,
    )
    m = 0.0
    for g in grads:
        m = B1 * m + (1 - B1) * g
    u = np.asarray(state.basis["w"].vectors)
    np.testing.assert_allclose(got[-1], m - u @ (u.T @ m), rtol=1e-9, atol=1e-12)


def test_a_gradient_that_is_not_finite_counts_as_zero():
    """It does not stay in the momentum, where nothing would show it."""
    grads = stream(4)
    zero = grads.copy()
    grads[1, 2, 3], zero[1] = np.nan, 0
    tx = project(optax.identity(), momentum=om.momentum(B1))
    (got, _), (want, _) = run(tx, grads), run(tx, zero)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_given_gradient_is_that_of_the_inner_transformation():
    """Bases and momenta are those of the block's own input."""

    def update(updates, state, params=None, *, gradient):
        del updates, params
        return gradient, state

    echo = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    x, g = ({"w": jnp.asarray(gaussian(4, 7, seed=k))} for k in (1, 2))
    tx = project(echo, momentum=om.momentum(B1))
    got = jax.jit(tx.update)(x, jax.jit(tx.init)(x), gradient=g)[0]["w"]
    u = left_vectors(x["w"], 2)
    np.testing.assert_allclose(got, u @ u.T @ np.asarray(g["w"]), rtol=1e-9, atol=1e-12)


def test_it_must_be_a_transformation():
    with pytest.raises(ValueError, match="`momentum` must be a gradient transforma"):
        om.project_low_rank(optax.identity(), momentum=0.9)
