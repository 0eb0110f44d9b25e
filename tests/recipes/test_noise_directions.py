"""A PINN in float64: directions without signal, and an `eps` that lets them rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_matrix as om

RECIPES = ("soap", "kl_soap", "eigen_adam", "splus")
EPS = 1e-6


@pytest.fixture(scope="module")
def gradient():
    """That of a PINN for u'' = -pi^2 sin(pi x), of a kernel: singular values vanish."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        sizes = ((1, 16), (16, 16), (16, 1))
        draw = lambda a, b: jnp.asarray(rng.standard_normal((a, b)) / a**0.5)
        params = [{"kernel": draw(a, b), "bias": np.zeros(b)} for a, b in sizes]

        def net(params, x):
            for layer in params[:-1]:
                x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
            return (x @ params[-1]["kernel"] + params[-1]["bias"])[0]

        def loss(params):
            u = lambda x: net(params, x[None])
            xs = jnp.linspace(0, 1, 33)
            source = jnp.pi**2 * jnp.sin(jnp.pi * xs)
            inside = jax.vmap(jax.grad(jax.grad(u)))(xs) + source
            return jnp.mean(inside**2) + 100 * (u(xs[0]) ** 2 + u(xs[-1]) ** 2)

        yield jax.grad(loss)(params)[1]["kernel"]


def updates(name, grads, **options):
    """The updates for gradients of one kernel."""
    tx = getattr(om, name)(1e-3, weight_decay=0.0, **options)
    state, step, found = tx.init({"kernel": grads[0]}), jax.jit(tx.update), []
    for g in grads:
        update, state = step({"kernel": g}, state)
        found.append(np.asarray(update["kernel"], np.float64))
    return found


def difference(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(a)


@pytest.mark.broad
@pytest.mark.daily("soap")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", RECIPES)
def test_rounding_of_the_gradient_does_not_decide_an_update(name, gradient):
    noise = np.random.default_rng(1).standard_normal(gradient.shape)
    other = gradient + 1e-16 * jnp.max(jnp.abs(gradient)) * noise
    steps = 2 if name == "splus" else 1  # Its first basis is the identity.

    def change(**options):
        runs = [updates(name, [g] * steps, **options) for g in (gradient, other)]
        return difference(runs[0][-1], runs[1][-1])

    assert change(eps=EPS) < 0.01 < change()


@pytest.mark.broad
@pytest.mark.daily("soap")
@pytest.mark.parametrize("name", ["soap", "kl_soap", "eigen_adam"])
def test_ordinary_updates_stay_but_for_the_first(name):
    """In the first bases of a gradient, its own entries off the diagonal are noise."""
    rng = np.random.default_rng(1)
    grads = [jnp.asarray(rng.standard_normal((16, 16)), jnp.float32) for _ in range(6)]
    with_eps, without = updates(name, grads, eps=EPS), updates(name, grads)
    for a, b in list(zip(with_eps, without, strict=True))[2:]:
        assert difference(a, b) < 1e-3


@pytest.mark.broad
@pytest.mark.daily("soap")
@pytest.mark.parametrize("name", RECIPES)
def test_a_traced_eps(name):
    grads = {"kernel": jnp.asarray(np.random.default_rng(0).standard_normal((8, 16)))}

    def step(eps):
        tx = getattr(om, name)(1e-3, weight_decay=0.0, eps=eps)
        return tx.update(grads, tx.init(grads))[0]["kernel"]

    traced, plain = jax.jit(step)(1e-3), jax.jit(lambda: step(1e-3))()
    np.testing.assert_allclose(traced, plain, rtol=1e-4, atol=1e-7)
